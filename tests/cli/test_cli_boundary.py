"""What a command raises becomes a sentence and an exit code; what it prints can be printed anywhere."""

import errno
import gc
import io
import os
import subprocess
import sys

import pytest
import torch

from conftest import noise
from ggss import cli
from ggss.cli import app
from ggss.cli.arguments import Loading
from ggss.data.manifests import write_manifest
from ggss.errors import InputError, keeps
from ggss.methods.registry import METHODS


@pytest.fixture
def run(ggss_command):
    return ggss_command


@pytest.fixture
def raising(run, monkeypatch):
    """`ggss methods`, in which something goes wrong."""

    def call(error, *words):
        def fail():
            raise error

        monkeypatch.setattr(METHODS, "names", fail)
        return run(*words, "methods")

    return call


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("the cat is out: bring it in"), 2, "the cat is out: bring it in"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a\x1bb"), 2, "directory: 'a\\x1bb'"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "No space left on device"),
        (MemoryError(), 2, "not enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), 2, "not enough memory"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate"), 2, "not enough memory"),
        (RecursionError(), 2, "nested too deeply"),
        (KeyError("x"), 70, "this is a defect of ggss, not of your input (KeyError: 'x')"),
        (AssertionError(), 70, "(AssertionError): please report it"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_whatever_is_raised_is_a_sentence(raising, error, code, said):
    seen = raising(error)
    assert seen[0] == code
    assert seen[2].startswith("ggss: ")
    assert said in seen[2]
    assert "Traceback" not in seen[2]
    assert seen[2].count("\n") == 1
    assert seen[1] == ""


def test_debug_shows_the_traceback(raising, monkeypatch):
    for words, setting in ((["--debug"], ""), ([], "1")):
        monkeypatch.setenv("GGSS_DEBUG", setting)
        code, _, err = raising(KeyError("x"), *words)
        assert code == 70
        assert "Traceback (most recent call last)" in err
        assert err.rstrip().splitlines()[-1].startswith("ggss: this is a defect of ggss")


def test_a_wrong_call_is_one_sentence(run):
    for words, said in {
        ("nothing",): "No such command 'nothing'",
        ("ask", "m", "--alfa", "1"): "No such option: --alfa",
        ("probe", "m", "--seed", "x"): "'--seed'",
        ("discover",): "Missing",
    }.items():
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert err.startswith("ggss: ")
        assert said in err
        assert err.count("\n") == 1


def test_a_command_without_arguments_is_its_help(run):
    for words in ((), ("study",), ("world",)):
        code, out, err = run(*words)
        assert code == 2
        assert "Usage" in out + err
        assert "Error" not in out + err


def test_ctrl_c_says_what_is_kept(raising):
    stop = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), keeps("half of it is in 'out', and the same command goes on"):
        raise stop
    assert raising(stop)[2] == "ggss: stopped; half of it is in 'out', and the same command goes on\n"


def test_a_stopped_study_and_a_stopped_discovery_say_so(run, monkeypatch, tmp_path):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("ggss.study.runner.run", stop)
    monkeypatch.setattr("ggss.study.plan.Plan.read", lambda *_: None)
    code, _, err = run("study", "run", "plan.yaml", "-o", tmp_path / "s")
    assert code == 130
    assert f"all answers so far are in '{tmp_path / 's'}', and the same command goes on" in err

    rows = [{"identity": i, "race": r, "path": f"{i}{r}.png"} for i in "12" for r in "ab"]
    for number, row in enumerate(rows):
        noise(number).save(tmp_path / row["path"])
    write_manifest(rows, tmp_path / "m.csv")
    monkeypatch.setattr(Loading, "load", lambda *_: None)
    monkeypatch.setattr("ggss.activations.collect.collect", stop)
    code, _, err = run(
        "discover", "m", "--images", tmp_path / "m.csv", "--attribute", "race", "-o", tmp_path / "steerer"
    )
    assert code == 130
    assert "activations so far are in the cache" in err


def test_a_reader_that_goes_away_ends_it_quietly():
    script = "from ggss.cli import main; import sys; sys.argv = ['ggss', '--help']; main()"
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run([sys.executable, "-c", script], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_python_m_ggss():
    ended = subprocess.run([sys.executable, "-m", "ggss", "--version"], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.strip()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_a_stream_cannot_encode_is_escaped(monkeypatch, encoding):
    """A name of a file that is not UTF-8, and letters that the stream does not have."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    monkeypatch.setattr(sys, "argv", ["ggss", "doctor", "/łódź/\udcff/m"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    streams[1].flush()
    said = streams[1].buffer.getvalue().decode(encoding)
    assert "\\udcff" in said
    assert ("łódź" if encoding == "utf-8" else "\\u0142") in said


def answers(monkeypatch, vlm, *said):
    monkeypatch.setattr(vlm, "answer", lambda *_, **__: list(said))
    monkeypatch.setattr(Loading, "load", lambda *_: vlm)


@pytest.fixture
def face(tmp_path):
    noise(0).save(tmp_path / "[a].png")
    return tmp_path / "[a].png"


def test_questions_and_answers_are_text(run, tiny, monkeypatch, face):
    monkeypatch.setenv("COLUMNS", "150")
    answers(monkeypatch, tiny("pixtral"), "[a] is [/b] \x1b[31mred\x07")
    code, out, err = run("ask", "m", face, "[INST] hi [/INST]")
    assert (code, err) == (0, "")
    assert "[INST] hi [/INST]" in out
    assert "[a] is [/b] \\x1b[31mred" in out
    assert "\x1b" not in out


def test_names_of_files_are_text_and_need_not_be_utf8(run, tiny, monkeypatch, face):
    odd = face.with_name("\udcff[red]\x1b[31m.png")
    try:
        face.rename(odd)
    except OSError:
        pytest.skip("this file system has no such names")
    answers(monkeypatch, tiny("pixtral"), "yes")
    code, _, err = run("ask", "m", odd, "who ?", "--json")
    assert (code, err) == (0, "")
    odd.unlink()
    code, _, err = run("ask", "m", odd, "who ?")
    assert code == 2
    assert "\\udcff[red]\\x1b[31m.png" in err
    assert "\x1b" not in err


def test_a_question_that_is_not_unicode_gets_a_sentence(run, tiny, monkeypatch, face):
    vlm = tiny("pixtral")
    monkeypatch.setattr(Loading, "load", lambda *_: vlm)
    code, _, err = run("ask", "m", face, "who \udcff ?")
    assert code == 2
    assert "not Unicode text" in err


def test_a_model_without_a_chat_template_gets_a_sentence(run, tiny, monkeypatch, face):
    vlm = tiny("llava-vicuna")
    monkeypatch.setattr(Loading, "load", lambda *_: vlm)
    vlm.processor.chat_template = None
    code, _, err = run("ask", "m", face, "who ?")
    assert code == 2
    assert "has no chat template" in err
    vlm.processor.chat_template = "{{ raise_exception('no pictures') }}"
    code, _, err = run("ask", "m", face, "who ?")
    assert code == 2
    assert "cannot write a question about images" in err


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_the_doctor_exits_with_1_if_a_check_fails(run, tiny, monkeypatch, form):
    vlm = tiny("pixtral")
    monkeypatch.setattr(Loading, "load", lambda *_: vlm)
    assert run("doctor", "m", *form)[0] == 0
    answer = vlm.answer
    monkeypatch.setattr(vlm, "answer", lambda *a, **k: [answer(*a, **k), answer(*a, **k)][0])
    code, out, _ = run("doctor", "m", *form)
    assert code == 1
    assert ("FAIL" in out) or ('"healthy": false' in out)


def test_the_doctor_survives_a_site_that_is_never_called(run, tiny, monkeypatch):
    vlm = tiny("pixtral")
    monkeypatch.setattr(Loading, "load", lambda *_: vlm)
    answer = vlm.answer
    monkeypatch.setattr(vlm, "answer", lambda asked, images, **more: answer(asked, [[] for _ in images], **more))
    code, out, _ = run("doctor", "m")
    assert code == 1
    assert "never called it" in " ".join(out.split())


def test_a_strength_without_a_steerer_is_an_error_wherever_both_are_options(run):
    both = [
        command.callback.__name__
        for command in app.registered_commands
        if {"alpha", "steer"} <= set(command.callback.__annotations__)
    ]
    assert {"ask", "probe", "serve"} <= set(both)
    code, _, err = run("serve", "small-world/qwen3-vl", "--alpha", "race=1")  # by name: there may be several
    assert code == 2
    assert "is for no steerer of --steer" in err
    for verb in set(both) - {"serve", "export"}:  # an export needs a steerer anyway
        code, _, err = run(verb, "small-world/qwen3-vl", *(["a.png", "?"] if verb == "ask" else []), "--alpha", "1")
        assert code == 2
        assert "give --steer, or leave out --alpha" in err


def test_a_negative_strength_names_options_that_exist(run, tmp_path):
    from ggss.steering.steerer import checked_alpha

    with pytest.raises(InputError, match=r"`ggss ask` has --allow-amplify"):
        checked_alpha(-1.0, allow_amplify=False)
    assert "--allow-amplify" in run("ask", "-h")[1]


def test_a_command_in_a_process_of_others_leaves_garbage_collection_alone(run):
    before = gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()
    assert run("--version")[0] == 0
    assert (gc.get_threshold(), gc.callbacks, gc.get_freeze_count()) == before


QUICK = """
import atexit, sys
from ggss import cli

atexit.register(lambda: print("registered before, done too"))

def main():
    atexit.register(lambda: print("registered later, done first"))
    print("printed")
    {ending}

cli.main = main
cli.program()
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [("pass", 0), ("sys.exit(2)", 2), ("sys.exit('a sentence')", 1), ("raise KeyboardInterrupt", -2), ("1 / 0", 1)],
)
def test_the_program_ends_as_python_ends_with_its_code_and_loses_nothing(ending, code):
    done = subprocess.run(
        [sys.executable, "-c", QUICK.format(ending=ending)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == code
    assert done.stdout == "printed\nregistered later, done first\nregistered before, done too\n"
    assert ("a sentence" in done.stderr) == ("a sentence" in ending)
    assert ("ZeroDivisionError" in done.stderr) == ("/ 0" in ending)
