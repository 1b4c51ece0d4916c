"""Reads a checkpoint's configuration: pooling, the modules after it, prompts, maximum length, licence."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer

from isosim.errors import InvalidInput
from isosim.export.pooling import Module

# sentence-transformers 6 states the pooling by its name, a key of MODES. Earlier releases have one true/false key per
# pooling: the keys of SWITCHES. If several are true, their vectors are concatenated in the order of SWITCHES.
MODES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean-sqrt-len",
    "weightedmean": "weighted-mean",
    "lasttoken": "last-token",
}
SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
HEAD = ("Dense", "LayerNorm", "Normalize")
NOT_STATED = "not stated"


@dataclass(frozen=True)
class CheckpointFacts:
    """A checkpoint's configuration; a value is None or empty if the checkpoint does not state it."""

    transformer: Path  # folder with config.json, weights and tokenizer.json
    pooling: str | None = None
    head: tuple[Module, ...] = ()
    max_length: int | None = None
    lower_case: bool = False  # texts are converted to lower case before they are tokenized
    prompts: dict[str, str] = field(default_factory=dict)
    prompt: str = ""  # default prompt, prepended to every text
    whole_pooled: bool = True  # whether the pooling includes the prompt's tokens


def read_json(path: Path) -> Any:
    """The content of a JSON file, or {} if the file does not exist. Raises InvalidInput if the JSON is not valid."""
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{path} is not valid JSON: {error}") from error


def read(folder: Path) -> CheckpointFacts:
    """Reads a checkpoint folder of transformers or sentence-transformers.

    Raises:
        InvalidInput: the folder is not a checkpoint of a dense encoder, or one of its modules cannot be exported.
    """
    facts = read_json(folder / "config_sentence_transformers.json")
    kind = facts.get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise InvalidInput(f"{folder} is a {kind}; only encoders that give one dense vector per text can be exported")
    modules = read_modules(folder)
    transformer = folder / modules[0].folder if modules else folder
    pooling = next((module for module in modules if module.kind == "Pooling"), None)
    # Some checkpoints without modules.json state their pooling in 1_Pooling/config.json.
    pooled = pooling.stated if pooling else read_json(folder / "1_Pooling" / "config.json")
    text = read_json(transformer / "sentence_bert_config.json")
    tokenizer = read_json(transformer / "tokenizer_config.json")
    prompts, prompt = prompts_of(facts, folder)
    return CheckpointFacts(
        transformer=transformer,
        pooling=pooling_of(pooled, folder),
        head=head_of(modules),
        max_length=text.get("max_seq_length") or tokenizer.get("model_max_length"),
        lower_case=bool(text.get("do_lower_case")),
        prompts=prompts,
        prompt=prompt,
        whole_pooled=bool(pooled.get("include_prompt", True)),
    )


def read_modules(folder: Path) -> tuple[Module, ...]:
    """The modules in modules.json, in order. Raises InvalidInput if one cannot be exported."""
    listed = read_json(folder / "modules.json") or []
    modules = []
    for entry in listed:
        name, place = str(entry.get("type", "")), folder / str(entry.get("path", ""))
        kind = name.rpartition(".")[2]
        if not name.startswith("sentence_transformers.") or kind not in ("Transformer", "Pooling", "Dropout", *HEAD):
            raise InvalidInput(f"{folder} has a module {name!r}, which cannot be exported; exportable are "
                               f"Transformer, Pooling, {', '.join(HEAD)}")  # fmt: skip
        if kind != "Dropout":  # dropout only acts in training
            modules.append(Module(kind, place, {} if kind == "Transformer" else read_json(place / "config.json")))
    kinds = [module.kind for module in modules]
    if listed and (kinds[:1] != ["Transformer"] or kinds.count("Transformer") > 1 or kinds[1:].count("Pooling") != 1):
        raise InvalidInput(
            f"{folder} has the modules {', '.join(kinds) or 'none'}; a Transformer followed by one Pooling is needed"
        )
    if listed and kinds[1] != "Pooling":
        raise InvalidInput(f"{folder} has a {kinds[1]} before its pooling, which cannot be exported")
    return tuple(modules)


def pooling_of(stated: dict[str, Any], folder: Path) -> str | None:
    """The checkpoint's pooling in isosim's names, for example `cls+mean`. None if the checkpoint states no pooling.

    Raises:
        InvalidInput: the pooling is unknown.
    """
    if not stated:
        return None
    modes = stated.get("pooling_mode") or [mode for key, mode in SWITCHES.items() if stated.get(key)] or "mean"
    modes = [modes] if isinstance(modes, str) else modes
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise InvalidInput(f"{folder} pools by {unknown[0]!r}, which isosim does not support; give --pooling")
    return "+".join(MODES[mode] for mode in modes)


def head_of(modules: tuple[Module, ...]) -> tuple[Module, ...]:
    """The modules after the pooling, except trailing normalizations, which do not change cosines."""
    head = [module for module in modules if module.kind in HEAD]
    for module in head:
        keys = {module.stated.get(key) for key in ("module_input_name", "module_output_name")}
        if not keys <= {None, "sentence_embedding"}:
            raise InvalidInput(
                f"{module.folder} works on {keys - {None}} instead of the sentence's vector and cannot be exported"
            )
    while head and head[-1].kind == "Normalize":
        head.pop()
    return tuple(head)


def prompts_of(facts: dict[str, Any], folder: Path) -> tuple[dict[str, str], str]:
    """Named prompts, and the text of the default prompt.

    Raises:
        InvalidInput: the default prompt is not among the named prompts.
    """
    prompts = {str(name): str(text) for name, text in (facts.get("prompts") or {}).items()}
    default = facts.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise InvalidInput(f"{folder} names {default!r} as its default prompt but has no such prompt; give --prompt")
    return prompts, prompts.get(default, "") if default is not None else ""


def licence_of(folder: Path) -> str:
    """The licence that the README's front matter states, or else the first line and the name of the licence file."""
    readme = folder / "README.md"
    if readme.is_file():
        text = readme.read_text(encoding="utf-8", errors="replace")
        front = re.match(r"\ufeff?---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
        stated = front_matter(front[1]) if front else {}
        if name := join_names(stated.get("license")):
            more = join_names(stated.get("license_name")) or join_names(stated.get("license_link"))
            return f"{name} ({more})" if more else name
    for path in sorted(folder.iterdir()):
        if re.fullmatch(r"(?i)(licen[cs]e|copying)([.-].*)?", path.name) and path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            first = next((line.strip() for line in lines if line.strip()), "empty")
            return f"{first[:100]} ({path.name})"
    return NOT_STATED


def front_matter(text: str) -> dict[str, Any]:
    try:
        facts = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    return facts if isinstance(facts, dict) else {}


def join_names(value: object) -> str:
    """Joins names with commas. `value` is a list of names, or a single name."""
    names = value if isinstance(value, list) else [value]
    return ", ".join(str(name) for name in names if name)


# If two tokenizers give the same tokens for all these texts, they are treated as equal. The texts contain accents,
# scripts with and without spaces, digits and blanks.
SENTENCES = (
    "A man is playing a guitar.",
    " Zoë's CAFÉ band – naïve,  isn't it?\tIn 2019 about 1,000 people heard it. ",
    "서울의 봄은 짧다. 東京の夜、猫が歩く。 مرحبا بالعالم नमस्ते दुनिया 🚣‍♀️ e\u0301",
    "",
)


def tokenizer_json(facts: CheckpointFacts) -> bytes:
    """The tokenizer to export.

    Normally this is tokenizer.json, unchanged. But transformers and sentence-transformers also read other files of the
    checkpoint. If the other files change the tokens, this function builds the tokenizer from all files.

    Raises:
        InvalidInput: there is no fast tokenizer, or it cannot be read.
    """
    path = facts.transformer / "tokenizer.json"
    if not path.is_file():
        raise InvalidInput(
            f"{facts.transformer} has no tokenizer.json (a fast tokenizer is needed); transformers may be able to "
            "make one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    content = path.read_bytes()
    try:
        own = Tokenizer.from_str(content.decode())
    except Exception as error:  # the tokenizers library raises bare Exceptions
        raise InvalidInput(f"{path} cannot be read: {error}") from error
    used = read_whole(facts) or own
    if facts.lower_case:
        used = lower_case_tokenizer(used)
    return content if ids(used) == ids(own) else used.to_str().encode()


def read_whole(facts: CheckpointFacts) -> Tokenizer | None:
    """The tokenizer that transformers builds from all files. None if there is no tokenizer_config.json."""
    if not (facts.transformer / "tokenizer_config.json").is_file():
        return None
    try:
        whole = AutoTokenizer.from_pretrained(facts.transformer)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise InvalidInput(f"transformers cannot read the tokenizer of {facts.transformer}: {error}") from error
    return Tokenizer.from_str(whole.backend_tokenizer.to_str())


def lower_case_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    before = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])
    return tokenizer


def ids(tokenizer: Tokenizer) -> list[list[int] | None]:
    """Token ids of each text in SENTENCES. None for a text with a character that the tokenizer cannot encode."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids_of_each: list[list[int] | None] = []
    for text in SENTENCES:
        try:
            ids_of_each.append(tokenizer.encode(text).ids)
        except Exception:  # noqa: BLE001 - tokenizers raises bare Exceptions
            ids_of_each.append(None)
    return ids_of_each
