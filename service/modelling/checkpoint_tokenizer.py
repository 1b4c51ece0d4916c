"""The tokenizer an export carries: the checkpoint's tokenizer.json, as transformers would use it."""

from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer

from service.core.errors import InvalidInput
from service.modelling.checkpoint_config import Stated

# Letters, marks, scripts with and without spaces, digits, blanks: what two readings of a file may differ in.
SENTENCES = (
    "A man is playing a guitar.",
    " Zoë's CAFÉ band – naïve,  isn't it?\tIn 2019 about 1,000 people heard it. ",
    "서울의 봄은 짧다. 東京の夜、猫が歩く。 مرحبا بالعالم नमस्ते दुनिया 🚣‍♀️ e\u0301",
    "",
)


def tokenizer_json(stated: Stated) -> bytes:
    """What is written beside the graph: the file as it stands, unless transformers or sentence-transformers, reading
    the whole checkpoint, give other tokens than the file alone; then theirs.

    Raises:
        InvalidInput: there is no fast tokenizer, or it cannot be read.
    """
    path = stated.transformer / "tokenizer.json"
    if not path.is_file():
        raise InvalidInput(
            f"{stated.transformer} has no tokenizer.json (a fast tokenizer is needed); where transformers can "
            "make one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    content = path.read_bytes()
    try:
        own = Tokenizer.from_str(content.decode())
    except Exception as error:  # tokenizers raises bare Exceptions
        raise InvalidInput(f"{path} cannot be read: {error}") from error
    used = read_whole(stated) or own
    if stated.lower_case:
        used = lowered(used)
    return content if ids(used) == ids(own) else used.to_str().encode()


def read_whole(stated: Stated) -> Tokenizer | None:
    """What transformers makes of all the checkpoint's files; None where tokenizer.json is the only one."""
    if not (stated.transformer / "tokenizer_config.json").is_file():
        return None
    try:
        whole = AutoTokenizer.from_pretrained(stated.transformer)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise InvalidInput(f"transformers cannot read the tokenizer of {stated.transformer}: {error}") from error
    return Tokenizer.from_str(whole.backend_tokenizer.to_str())


def lowered(tokenizer: Tokenizer) -> Tokenizer:
    before = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])
    return tokenizer


def ids(tokenizer: Tokenizer) -> list[list[int] | None]:
    """Of the sentences; None where the vocabulary has no token for something and none for the unknown."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found: list[list[int] | None] = []
    for text in SENTENCES:
        try:
            found.append(tokenizer.encode(text).ids)
        except Exception:  # noqa: BLE001 - tokenizers raises nothing else
            found.append(None)
    return found
