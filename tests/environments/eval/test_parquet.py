"""The benchmarks' parquet files give the same items as their other layouts."""

import base64
import csv
from io import BytesIO
from itertools import product

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from ggss.data import layouts
from ggss.errors import InputError
from ggss.probes import benchmarks
from ggss.probes import benchmarks as mme_files
from ggss.probes.ambiguous import load_sb_bench
from ggss.probes.benchmarks import PERCEPTION, REASONING

QUESTION = "Which is it?\nOptions: A: a cat, B: a dog, C: a cup, D: a hat"


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def mmstar_rows(picture):
    return [
        {
            "index": i,
            "question": QUESTION,
            "image": picture(png(i)),
            "answer": "ABCD"[i % 4],
            "category": dimension,
            "l2_category": "recognition",
            "meta_info": {"source": "nowhere"},
        }
        for i, dimension in enumerate(benchmarks.DIMENSIONS)
    ]


def write(path, rows):
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("picture", [lambda data: data, lambda data: {"bytes": data, "path": None}])
def test_mmstars_parquet_asks_what_its_tsv_asks(tmp_path, picture):
    table = write(tmp_path / "mmstar.parquet", mmstar_rows(picture))
    with (tmp_path / "MMStar.tsv").open("w", newline="") as file:
        rows = mmstar_rows(lambda data: base64.b64encode(data).decode())
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)
    items = benchmarks.load_mmstar(table)
    assert items == benchmarks.load_mmstar(tmp_path / "MMStar.tsv")
    assert items[1].options == {"A": "a cat", "B": "a dog", "C": "a cup", "D": "a hat"}
    np.testing.assert_array_equal(items[1].images[0].image(), Image.open(BytesIO(png(1))))


def test_bad_parquet_rows_are_all_listed(tmp_path):
    rows = mmstar_rows(lambda data: data)
    rows[0]["image"], rows[2]["answer"], rows[3]["category"] = None, "E", None
    with pytest.raises(InputError) as caught:
        benchmarks.load_mmstar(write(tmp_path / "mmstar.parquet", rows))
    for problem in ("3 problems", "row 0 has no picture", "row 2 has answer 'E'", "row 3 has category ''"):
        assert problem in str(caught.value)
    (tmp_path / "mmstar.parquet").write_bytes(b"PAR1, or is it?")
    with pytest.raises(InputError, match="is not a parquet table"):
        benchmarks.load_mmstar(tmp_path / "mmstar.parquet")


def mme_rows():
    return [
        {
            "question_id": f"{subtask}/{n}.png",
            "image": {"bytes": png(10 * k + n), "path": f"{n}.png"},
            "question": f"Is it {answer}? Please answer yes or no.",
            "answer": answer,
            "category": subtask,
        }
        for k, subtask in enumerate(sorted(PERCEPTION | REASONING))
        for n in range(2)
        for answer in ("Yes", "No")
    ]


def test_mmes_shards_ask_what_its_folders_ask(tmp_path):
    rows, folder = mme_rows(), tmp_path / "MME_Benchmark"
    (tmp_path / "MME" / "data").mkdir(parents=True)
    write(tmp_path / "MME" / "data" / "test-00000-of-00002.parquet", rows[:31])
    write(tmp_path / "MME" / "data" / "test-00001-of-00002.parquet", rows[31:])
    for row in rows:
        picture = folder / row["question_id"]
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(row["image"]["bytes"])
        with picture.with_suffix(".txt").open("a") as file:
            file.write(f"{row['question']}\t{row['answer']}\n")
    sharded, foldered = mme_files.load_mme(tmp_path / "MME"), mme_files.load_mme(folder)
    assert [(i.key, i.prompt, i.expected, i.cluster) for i in sharded] == [
        (i.key, i.prompt, i.expected, i.cluster) for i in foldered
    ]
    assert [item.images[0].digest for item in sharded] == [item.images[0].digest for item in foldered]
    assert sharded[0].images[0] is sharded[1].images[0]  # a picture is kept once


def test_bad_mme_rows_are_all_listed(tmp_path):
    rows = mme_rows()
    rows[0]["answer"], rows[2]["category"], rows[4]["image"] = "maybe", "astrology", None
    with pytest.raises(InputError) as caught:
        mme_files.load_mme(write(tmp_path / "mme.parquet", rows))
    for problem in ("row 0, has answer 'maybe'", "row 2, has category 'astrology'", "row 4, has no picture"):
        assert problem in str(caught.value)


def test_social_counterfactuals_is_read_as_it_is_on_the_hub(tmp_path):
    values = layouts.SOCIAL_COUNTERFACTUALS["race_gender"].values.values()
    rows = [
        {
            "counterfactual_set": "race_gender_tailor_0_376",
            "image": {"bytes": png(seed), "path": None},
            "caption": f"A photo of a {race} {gender} tailor",
            "a1a2": f"{race} {gender}",
            "a1_type": "race",
            "a1": race,
            "a2_type": "gender",
            "a2": gender,
        }
        for seed, (race, gender) in enumerate(product(*values))
    ]
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for number, part in enumerate((rows[:5], rows[5:])):
        write(tmp_path / "hub" / "data" / f"train-{number}.parquet", part)
    files = layouts.parquet_files(tmp_path / "hub")
    layout = layouts.extract(files, "race_gender", tmp_path / "pictures")
    contents = layouts.read_layout(layout, tmp_path / "pictures")
    assert contents.flaws == []
    assert len(contents.rows) == 12
    first = next(row for row in contents.rows if (row["race"], row["gender"]) == ("White", "male"))
    assert (first["occupation"], first["identity"]) == ("tailor", "race_gender_tailor_0_376")
    with open(first["path"], "rb") as file:
        assert file.read() == png(0)


def test_any_table_of_multiple_choice_may_be_parquet(tmp_path):
    table = write(tmp_path / "mine.parquet", mmstar_rows(lambda data: {"bytes": data, "path": None}))
    assert [item.key for item in benchmarks.load_choice(table, "mine")] == [str(i) for i in range(6)]


def test_sb_bench_is_read_from_its_parquet(tmp_path):
    row = {
        "category": "Age",
        "context": "Two people.",
        "question": "Who forgets?",
        "ans0": "The older",
        "ans1": "The younger",
    }
    rows = [
        row | {"ans2": "Cannot be determined", "label": k, "image": {"bytes": png(k), "path": "x"}} for k in range(3)
    ]
    items = load_sb_bench(write(tmp_path / "real-00000-of-00001.parquet", rows))
    assert [item.expected for item in items] == ["A", "B", "C"]
    assert items[0].images[0].image().size == (8, 8)
