"""BERT (Devlin et al. 2019) by Transformers, for documents of subword ids."""

from pathlib import Path

from torch import Tensor, nn

from calibrant._text import to_one_line
from calibrant.lab.hub import is_hub_reachable
from calibrant.registry import NETWORKS
from calibrant.types import InputError

__all__ = ["bert"]


class _Bert(nn.Module):
    def __init__(self, body: nn.Module, padding: int, origin: str) -> None:
        super().__init__()
        self.body, self.padding, self.origin = body, padding, origin

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(tokens, attention_mask=(tokens != self.padding).long()).logits


@NETWORKS.register
def bert(
    classes: int, *, checkpoint: str = "bert-base-uncased", pretrained: bool = True, revision: str | None = None
) -> nn.Module:
    """A BERT-like classifier from the hub or a local folder; `pretrained=False` takes its architecture only.

    Token ids as `calibrant.lab.data.newsgroups(tokenizer=...)` makes them; the padding id of the checkpoint is masked.
    AdaFocal trains `bert-base-uncased` on 20 Newsgroups; 109 M parameters. Raises `InputError` if the checkpoint cannot
    be loaded. `revision` is a commit of the hub's, and may not be said of a folder.
    """
    if revision is not None and Path(checkpoint).is_dir():
        raise InputError(
            f"revision={revision!r} is of the hub, but {checkpoint} is a folder; leave revision out",
            code="revision_with_folder",
        )
    try:
        from transformers import AutoConfig, AutoModelForSequenceClassification
    except ImportError as error:
        raise InputError(f"bert needs {error.name}: pip install 'calibrant[text]'", code="missing_package") from None
    load_options = {"local_files_only": Path(checkpoint).is_dir() or not is_hub_reachable(), "revision": revision}
    try:
        config = AutoConfig.from_pretrained(checkpoint, num_labels=classes, **load_options)
        model_class = AutoModelForSequenceClassification
        body = (
            model_class.from_pretrained(checkpoint, config=config, **load_options)
            if pretrained
            else model_class.from_config(config)
        )
    except (OSError, ValueError) as error:
        reason = to_one_line(error)
        raise InputError(
            f"cannot load {checkpoint!r} ({reason}); give the folder of a checkpoint if there is no network",
            code="hub_unavailable",
        ) from None
    commit = getattr(config, "_commit_hash", None)
    return _Bert(body, config.pad_token_id or 0, checkpoint + (f" at {commit}" if commit else ""))
