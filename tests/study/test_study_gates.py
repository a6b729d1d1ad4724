"""How far a gate opens on tokens, against the gate that the operator itself reports while it steers."""

import numpy as np
import pytest
import torch

import ggss
from ggss.activations import SITE, Activations, Rows, pool
from ggss.methods.operator import apply
from ggss.steering.fitting import fit, measure_gates


@pytest.fixture(scope="module")
def acts():
    rng = np.random.default_rng(0)
    shift, tokens, attributes, contexts = rng.normal(size=(3, 24)), [], [], []
    for person in range(8):
        base = rng.normal(size=(6, 24))
        for race in range(3):
            tokens.append(torch.tensor(base + 0.7 * shift[race], dtype=torch.float32))
            attributes.append({"race": "abc"[race]})
            contexts.append(person)
    tokens[0][2] = 0  # padding has no direction and is not counted
    return Activations(tokens, attributes, contexts)


@pytest.mark.parametrize("method", ["ggss", "ggss-token-gate", "ggss-no-slerp"])
def test_shares_and_means_are_those_of_live_steering(acts, method):
    steerer = ggss.fit(method, acts, attribute="race")
    rows = torch.cat(list(acts.tokens))
    rows = rows[rows.any(1)]
    gate = apply(steerer.operators[SITE], rows, torch.ones(len(rows), 1)).gate.double().flatten()
    found = measure_gates(steerer, acts)
    assert 0.4 < found.mean < 0.95
    assert found.mean == pytest.approx(float(gate.mean()), abs=1e-5)
    assert found.open == pytest.approx(float((gate > 0.9).double().mean()), abs=1e-6)
    assert found.shut == pytest.approx(float((gate < 0.4).double().mean()), abs=1e-6)
    assert (found.median, found.std) == pytest.approx(
        (steerer.operators[SITE].gate_median, steerer.operators[SITE].gate_std), abs=1e-6
    )
    assert (found.median == found.tokens) is (method == "ggss-token-gate")


def test_without_gate_or_tokens_there_is_nothing_to_say(acts):
    pooled = Activations.from_rows(
        {SITE: Rows(torch.stack([pool(t) for t in acts.tokens]))}, acts.attributes, acts.contexts
    )
    steerer = fit("ggss", acts, attribute="race")
    assert measure_gates(steerer, pooled) is None
    assert measure_gates(fit("ggss-no-gate", acts, attribute="race"), acts) is None
    assert measure_gates(fit("inlp-euclidean", acts, attribute="race"), acts) is None
