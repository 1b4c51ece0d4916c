"""The frozen encoder in torch: a checkpoint's modules, as sentence-transformers loads them."""

import hashlib
import inspect
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from isosim.encoders.spec import EncoderSpec
from isosim.errors import InvalidInput
from isosim.export.checkpoints import Checkpoint
from isosim.store.artifacts import sha256

WEIGHTED = ("Transformer", "Dense", "LayerNorm")  # modules with weights
EXPORTABLE = (*WEIGHTED, "Pooling", "Normalize", "Dropout")
# The hidden state that is averaged with the last one. BERT-flow's code calls the first of these poolings last2avg: it
# was meant to average the last two layers, but because of a bug in a loop, it averages the first and the last layer.
AVERAGES = {"first-last-avg": 1, "last2avg": -2}
# The pooler is a trained layer of the checkpoint. Its input is the first token's vector. Supervised SimCSE uses the
# pooler's output (Gao et al., 2021).
POOLER = "pooler"
NO_MAXIMUM = 1_000_000  # tokens; transformers states far more if there is no maximum
# A broken file, an unknown architecture, a missing package, or weights that do not fit the configuration.
FAILURES = (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError, RuntimeError, ArithmeticError)
# If two tokenizers give the same tokens for all these texts, they are treated as equal. The texts contain accents,
# scripts with and without spaces, digits and blanks.
SENTENCES = (
    "A man is playing a guitar.",
    " Zoë's CAFÉ band – naïve,  isn't it?\tIn 2019 about 1,000 people heard it. ",
    "서울의 봄은 짧다. 東京の夜、猫が歩く。 مرحبا بالعالم नमस्ते दुनिया 🚣‍♀️ e\u0301",
    "",
)

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
logging.getLogger("sentence_transformers").setLevel(logging.ERROR)


class LayerAverage(nn.Module):
    """The average of two layers' mean-pooled token vectors: an earlier layer's and the last one's."""

    def __init__(self, layer: int, dim: int) -> None:
        super().__init__()
        self.layer = layer
        self.pool = Pooling(dim, "mean")

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        last = features["token_embeddings"]
        hidden = (*features["all_layer_embeddings"][:-1], last)  # its own last tensor may lack the final norm
        means = [self.pool(features | {"token_embeddings": one}) for one in (hidden[self.layer], last)]
        features["sentence_embedding"] = (means[0]["sentence_embedding"] + means[1]["sentence_embedding"]) / 2
        return features


class Encoder(nn.Module):
    """Maps token ids to one vector per text. Vectors are deterministic, independent of padding, and not normalized."""

    def __init__(
        self, model: SentenceTransformer, spec: EncoderSpec, tokenizer: bytes, prompts: dict[str, str]
    ) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.spec = spec
        self.tokenizer = tokenizer  # content of tokenizer.json
        self.prompts = prompts  # named prompts that callers may use
        transformer: Any = model[0]
        inputs = inspect.signature(transformer.model.forward).parameters
        self.token_types = "token_type_ids" in inputs and getattr(transformer.config, "type_vocab_size", 0) > 1
        # GPT-2 and rotary positions get position ids that count only real tokens. So padding on the left does not
        # change a decoder's output. ONNX Runtime's RotaryEmbedding also requires position ids for each text of a batch.
        self.positions = "position_ids" in inputs and position_table(transformer) is None

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """(B, T) ids and mask (1: a token, 0: padding) -> (B, D)."""
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.token_types:
            features["token_type_ids"] = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        if self.positions:
            features["position_ids"] = (attention_mask.cumsum(1) - 1).clamp_min(0)
        vectors: Tensor = self.model(features)["sentence_embedding"]
        return vectors


@dataclass(frozen=True)
class Module:
    """A module in a checkpoint: the name of its class, and its folder."""

    kind: str
    folder: Path

    def check(self) -> None:
        """Raises InvalidInput if the module cannot be exported, or if it is not safe to load."""
        stated, why = read(self.folder / "config.json"), None
        activation = str(stated.get("activation_function", "torch.nn.Tanh"))
        if self.kind not in EXPORTABLE:
            why = f"is a {self.kind}, which cannot be exported; exportable are {', '.join(EXPORTABLE)}"
        elif self.kind == "Transformer" and (self.folder / "adapter_config.json").is_file():
            why = "holds an adapter without its model; merge it (merge_and_unload) and save the merged model"
        elif self.kind == "Transformer" and "auto_map" in stated:
            why = "requires the checkpoint's own code (auto_map), which isosim does not run"
        elif self.kind == "Dense" and not activation.startswith("torch.nn."):
            why = f"has the activation {activation!r}; only those of torch.nn can be exported"
        elif self.kind in WEIGHTED and not self.weights():
            why = (
                "has no safetensors weights, and pickled weights are refused; if you trust them, load the model with "
                "sentence-transformers and write safetensors with save_pretrained"
            )
        if why:
            raise InvalidInput(f"{self.folder} {why}")

    def weights(self) -> list[Path]:
        return sorted(self.folder.glob("*.safetensors" if self.kind == "Transformer" else "model.safetensors"))

    def digest(self) -> str:
        """SHA-256 (hex) of the kind, the configuration and the weights of a module after the pooling."""
        weights = "".join(map(sha256, self.weights()))
        facts = {"kind": self.kind, "stated": read(self.folder / "config.json"), "weights": weights}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def read(path: Path) -> Any:
    """The content of a JSON file, or {} if the file does not exist. Raises InvalidInput if the JSON is not valid."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise InvalidInput(f"{path} is not valid JSON: {error}") from error


def modules_of(folder: Path) -> list[Module]:
    """The checkpoint's modules, in order: a transformer, then, if the checkpoint lists them, a pooling and others.

    Raises:
        InvalidInput: the folder is not a checkpoint of a dense encoder, or it is not safe to load.
    """
    kind = read(folder / "config_sentence_transformers.json").get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise InvalidInput(f"{folder} is a {kind}; only encoders that give one dense vector per text can be exported")
    modules = []
    for entry in read(folder / "modules.json") or [{"type": "sentence_transformers.models.Transformer", "path": ""}]:
        package, _, name = entry["type"].rpartition(".")
        known = package.startswith("sentence_transformers.")
        modules.append(Module(name if known else entry["type"], folder / entry["path"]))
        modules[-1].check()
    kinds = [module.kind for module in modules]
    if kinds[0] != "Transformer" or kinds[1:2] not in ([], ["Pooling"]) or {"Transformer", "Pooling"} & {*kinds[2:]}:
        raise InvalidInput(f"{folder} has the modules {', '.join(kinds)}; a Transformer, then one Pooling are needed")
    return modules


def weights_digest(modules: list[Module]) -> str:
    """SHA-256 (hex) of the hashes of the transformer's weights and of all exported modules after the pooling."""
    head = [module for module in modules[2:] if module.kind != "Dropout"]
    while head and head[-1].kind == "Normalize":
        head.pop()
    digests = [*map(sha256, modules[0].weights()), *(module.digest() for module in head)]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def load(
    checkpoint: Checkpoint,
    *,
    pooling: str | None = None,
    layers: int | None = None,
    max_length: int | None = None,
    prompt: str | None = None,
    config: dict[str, Any] | None = None,
) -> Encoder:
    """Loads an encoder in float32. An option of None means the checkpoint's value.

    Trailing normalizations are left out, because they do not change cosines. If the transformer has a final norm, it
    follows the last of the first `layers` layers. `config` replaces entries of the transformer's config.json.

    Raises:
        InvalidInput: the checkpoint cannot be exported, or an option does not fit it.
    """
    modules = modules_of(checkpoint.folder)
    stated = load_stated(checkpoint.folder, modules[0].folder, layers, config or {})
    transformer, *others = stated
    own = next((module for module in others if isinstance(module, Pooling)), None)
    pooling = pooling or pooling_of(own)
    check_weights(transformer, modules[0].folder, pooler=pooling == POOLER)
    whole = own is None or own.include_prompt  # an exported encoder cannot exclude the prompt's tokens
    if prompt is None:
        prompt = stated.prompts.get(stated.default_prompt_name or "", "")
    if prompt and not whole:
        raise InvalidInput(
            "this checkpoint excludes the prompt's tokens from its pooling (include_prompt: false), and an export "
            "cannot exclude them; use --prompt '' to export the checkpoint without prompts"
        )
    while others and isinstance(others[-1], Normalize):
        others.pop()
    model = SentenceTransformer(
        modules=[*pooled(transformer, pooling), *others[1:]], device="cpu", local_files_only=True
    )
    room = longest(transformer)
    max_length = min(stated.max_seq_length or room, room) if max_length is None else max_length
    if not 3 <= max_length <= room or max_length >= NO_MAXIMUM:
        raise InvalidInput(f"--max-length {max_length}: this encoder takes 3 to {min(room, NO_MAXIMUM - 1)} tokens")
    tokenizer = tokenizer_json(modules[0].folder, stated)
    spec = EncoderSpec(
        source=checkpoint.source,
        weights=weights_digest(modules),
        tokenizer=hashlib.sha256(tokenizer).hexdigest(),
        pooling=pooling,
        layers=transformer.config.num_hidden_layers,
        max_length=int(max_length),
        prompt=prompt,
        precision="fp32",
        dim=dimensions(model, checkpoint.folder),
        pad_token_id=transformer.config.pad_token_id or 0,
    )
    return Encoder(model, spec, tokenizer, stated.prompts if whole and any(stated.prompts.values()) else {})


def load_stated(folder: Path, transformer: Path, layers: int | None, config: dict[str, Any]) -> Any:
    """Loads the checkpoint with all its modules. Raises InvalidInput if it cannot be loaded."""
    try:
        if layers is not None:
            config = config | first_layers(AutoConfig.from_pretrained(transformer), layers)
        return SentenceTransformer(
            str(folder),
            device="cpu",
            trust_remote_code=False,
            local_files_only=True,
            model_kwargs={"use_safetensors": True, "dtype": torch.float32},
            config_kwargs=config,
        )
    except FAILURES as error:
        raise InvalidInput(f"{folder} cannot be loaded: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def first_layers(config: Any, layers: int) -> dict[str, Any]:
    """Changes of a configuration that keep the first `layers` layers, with their attention types."""
    depth = config.num_hidden_layers
    if not 0 <= layers <= depth:
        raise InvalidInput(f"--layers {layers}: this encoder has {depth} layers")
    if layers < depth and getattr(config, "num_hidden_groups", 1) > 1:  # ALBERT; the published ones have one group
        raise InvalidInput(f"--layers {layers}: this encoder's layers share their weights in groups")
    kinds = getattr(config, "layer_types", None)
    return {"num_hidden_layers": layers} | ({} if kinds is None else {"layer_types": kinds[:layers]})


def check_weights(transformer: Any, folder: Path, *, pooler: bool) -> None:
    """Raises InvalidInput if the transformer's weights are incomplete. The library fills gaps with random numbers."""
    _, loading = type(transformer.model).from_pretrained(
        folder, config=transformer.config, use_safetensors=True, output_loading_info=True
    )
    missing = sorted(name for name in loading["missing_keys"] if pooler or not name.startswith("pooler."))
    if missing:
        raise InvalidInput(
            f"{folder} lacks {len(missing)} of the model's weights ({missing[0]} …); its vectors would be noise"
        )


def pooling_of(module: Pooling | None) -> str:
    """The checkpoint's own pooling, for example `cls+mean`."""
    modes = "mean" if module is None else module.pooling_mode
    return modes if isinstance(modes, str) else "+".join(modes)


def pooled(transformer: Any, pooling: str) -> list[nn.Module]:
    """The transformer and the modules that pool its token vectors. Raises InvalidInput if there is no such pooling."""
    if pooling == POOLER:
        if getattr(transformer.model, "pooler", None) is None:
            raise InvalidInput(f"--pooling pooler: a {transformer.config.model_type} has no pooler")
        transformer.modality_config = {"text": {"method": "forward", "method_output_name": "pooler_output"}}
        transformer.module_output_name = "sentence_embedding"
        return [transformer]
    if pooling in AVERAGES:
        transformer.config.output_hidden_states = True
        return [transformer, LayerAverage(AVERAGES[pooling], transformer.get_embedding_dimension())]
    try:
        return [transformer, Pooling(transformer.get_embedding_dimension(), pooling.split("+"))]
    except ValueError:
        names = ", ".join([*Pooling.POOLING_MODES, *AVERAGES, POOLER])
        raise InvalidInput(f"--pooling {pooling!r}: give one of {names}, or for example cls+mean") from None


def dimensions(model: SentenceTransformer, folder: Path) -> int:
    """Size of a vector. Raises InvalidInput if the modules do not fit each other."""
    features = {"input_ids": torch.zeros(1, 3, dtype=torch.long), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    try:
        with torch.no_grad():
            return int(model(features)["sentence_embedding"].shape[1])
    except (RuntimeError, IndexError) as error:
        raise InvalidInput(f"the modules of {folder} do not fit the options: {first_line(error)}") from error


def position_table(transformer: Any) -> nn.Embedding | None:
    """Absolute position embeddings; None for GPT-2's, and for rotary or relative positions."""
    found = (one for name, one in transformer.model.named_modules() if name.endswith("position_embeddings"))
    return next((one for one in found if isinstance(one, nn.Embedding)), None)


def longest(transformer: Any) -> int:
    """Maximum number of tokens per text that the positions allow."""
    table = position_table(transformer)
    if table is None:
        return int(getattr(transformer.config, "max_position_embeddings", NO_MAXIMUM))
    # RoBERTa has 514 position embeddings for 512 tokens: its position ids start after the padding id.
    return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)


def tokenizer_json(folder: Path, model: Any) -> bytes:
    """The tokenizer to export.

    Normally this is tokenizer.json, unchanged. But transformers and sentence-transformers also read other files of the
    checkpoint. If the other files change the tokens, this is the tokenizer that they built from all files.

    Raises:
        InvalidInput: there is no fast tokenizer.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InvalidInput(
            f"{folder} has no tokenizer.json (a fast tokenizer is needed); transformers may be able to "
            "make one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    content = path.read_bytes()
    if not (folder / "tokenizer_config.json").is_file():
        return content
    built = Tokenizer.from_str(model.tokenizer.backend_tokenizer.to_str())
    return content if ids(built) == ids(Tokenizer.from_buffer(content)) else built.to_str().encode()


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
