"""BERT (Devlin et al. 2019), loaded by Transformers, for documents of subword ids."""

from pathlib import Path

from torch import Tensor, nn

from calibrant._core.lazy import import_optional
from calibrant._core.registry import NETWORKS
from calibrant._core.types import InputError
from calibrant.lab.hub import is_hub_reachable, wrap_hub_errors


class _Bert(nn.Module):
    """A classifier of Transformers that masks padding and returns only logits. Run records keep its `origin`."""

    def __init__(self, body: nn.Module, padding: int, origin: str) -> None:
        super().__init__()
        self.body, self.padding, self.origin = body, padding, origin

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of documents of token ids (n, t)."""
        return self.body(tokens, attention_mask=(tokens != self.padding).long()).logits


@NETWORKS.register
def bert(
    classes: int, *, checkpoint: str = "bert-base-uncased", pretrained: bool = True, revision: str | None = None
) -> nn.Module:
    """Load a BERT-like classifier from the Hugging Face hub or from a local folder.

    AdaFocal trains `bert-base-uncased` (109 M parameters) on 20 Newsgroups. Inputs are token ids of
    `calibrant.lab.data.newsgroups(tokenizer=...)`; the padding id of the checkpoint is masked.

    Args:
        classes: Number of classes.
        checkpoint: Name on the Hugging Face hub, or a folder.
        pretrained: Load the weights; otherwise only the architecture.
        revision: Commit on the Hugging Face hub; not allowed for a folder.

    Raises:
        InputError: If the checkpoint cannot be loaded.
    """
    is_folder = Path(checkpoint).is_dir()
    if revision is not None and is_folder:
        raise InputError(
            f"Expected no revision for the folder {checkpoint}, got {revision!r}. Remove revision.",
            code="revision_with_folder",
        )
    transformers = import_optional("transformers", "text", "bert")
    options = {"local_files_only": is_folder or not is_hub_reachable(), "revision": revision}
    with wrap_hub_errors(f"the checkpoint {checkpoint!r}"):
        config = transformers.AutoConfig.from_pretrained(checkpoint, num_labels=classes, **options)
        model = transformers.AutoModelForSequenceClassification
        body = model.from_pretrained(checkpoint, config=config, **options) if pretrained else model.from_config(config)
    commit = getattr(config, "_commit_hash", None)
    # a configuration may lack the padding id, which is 0 in BERT's vocabulary
    return _Bert(body, config.pad_token_id or 0, checkpoint + (f" at {commit}" if commit else ""))
