"""The model of a command: its first word or --model; a file alone names the functions that make one."""

import pytest

from profiler.cli import answer

SOURCE = """
imported = [][0]

def make(batch_size=4):
    def loss(output, target):
        return output, target
    return net(), batch(batch_size), loss

def tiny():
    return {"module": net(), "batch": batch(1)}

def net(width=3):
    return width

def collate(samples):
    return samples, len(samples)

def main():
    print(make())

def _hidden():
    return net(), batch(2)
"""


@pytest.mark.parametrize(
    "words",
    [
        "run", "rehearse", "predict", "explain", "timeline", "plan --budget max", "stages", "fit --memory 1GiB",
        "blocks",
    ],
)  # fmt: skip
@pytest.mark.parametrize("model", [["{}"], ["--model", "{}"]])
def test_every_command_with_a_model_takes_it_both_ways(words, model, here, capsys):
    assert answer([*words.split(), *(word.format("transfromer") for word in model)]) == 2
    assert "did you mean 'transformer'?" in capsys.readouterr().err

    assert answer([*words.split(), "mlp", "--model", "mlp"]) == 2
    assert "unexpected extra argument" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "plan --budget max", "explain", "blocks"])
def test_a_file_alone_names_the_functions_that_make_a_model_and_is_not_imported(command, here, capsys):
    (here / "train.py").write_text(SOURCE)

    assert answer([*command.split(), "train.py"]) == 2

    assert capsys.readouterr().err.splitlines() == [
        "gcprof: which function of 'train.py' makes the model?",
        "hint: name it: train.py:make, train.py:tiny",
    ]
