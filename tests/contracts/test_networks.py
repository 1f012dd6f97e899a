"""What holds for every network by being registered."""

import pytest

torch = pytest.importorskip("torch")

from calibrant.registry import NETWORKS  # noqa: E402
from method_contracts import Contract  # noqa: E402

from calibrant.lab import data, networks  # noqa: E402

contract = Contract()

TEXT = {"cnn8_text", "global_pooling_cnn"}
NARROW_SETTINGS = {  # the architecture at a width that a test can afford
    "densenet121": {"growth": 4},
    "lenet5": {"channels": 3},
    "mlp": {"features": 3 * 32 * 32, "hidden": (16,)},
    "wide_resnet": {"depth": 8, "widen": 1},
    **{name: {"words": 50, "dimension": 8, "width": 8} for name in TEXT},
    "tree_lstm": {"words": 50, "dimension": 8, "memory": 8},
}
DEEP = {name: {"width": 8} for name in NETWORKS if name.startswith(("resnet", "vgg"))}


@pytest.fixture
def make(tmp_path):
    def make(name, classes):
        arguments = DEEP | NARROW_SETTINGS
        if name == "bert":
            return networks.bert(classes, checkpoint=str(tiny_bert(tmp_path)), pretrained=False)
        return NETWORKS[name](classes, **arguments.get(name, {}))

    return make


@pytest.mark.parametrize("name", NETWORKS)
def test_contract_of(name, make, small_data):
    contract.verify(name, make=make, small_data=small_data)


def tiny_bert(folder):
    from transformers import BertConfig

    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    BertConfig(vocab_size=50, max_position_embeddings=64, **sizes).save_pretrained(folder / "tiny")
    return folder / "tiny"


def inputs(name, small_data, n=3):
    g = torch.Generator().manual_seed(0)
    if name == "tree_lstm":
        return data.sst(small_data).train.inputs[:n]
    if name in TEXT | {"bert"}:
        return torch.randint(1, 50, (n, 40), generator=g)
    size = 64 if name in ("resnet50_imagenet", "resnet50_tiny_imagenet") else 32
    return torch.randn(n, 3, size, size, generator=g)


@contract.holds(classes=[2, 7])
def inputs_become_logits_and_every_parameter_gets_a_gradient(name, classes, make, small_data):
    torch.manual_seed(0)
    network, x = make(name, classes), inputs(name, small_data)
    network.eval()
    assert network(x).shape == (3, classes)
    network.train()
    logits = network(x)
    assert logits.isfinite().all()
    logits.square().sum().backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


@contract.holds()
def evaluation_is_repeatable_and_by_example(name, make, small_data):
    torch.manual_seed(0)
    network, x = make(name, 3).eval(), inputs(name, small_data)
    with torch.no_grad():
        batch_logits = network(x)
        torch.testing.assert_close(network(x), batch_logits)
        single_logits = torch.cat([network(x[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(single_logits, batch_logits, atol=1e-5, rtol=1e-4)


@contract.holds()
def names_resolve_with_their_defaults_spelled_out(name):
    assert NETWORKS.canonical(name).startswith(name)
    assert "vectors" not in NETWORKS.canonical(name)


@contract.holds()
def state_moves_to_a_fresh_network(name, make, small_data):
    torch.manual_seed(0)
    first, second, x = make(name, 3).eval(), make(name, 3).eval(), inputs(name, small_data)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        assert torch.equal(first(x), second(x))
