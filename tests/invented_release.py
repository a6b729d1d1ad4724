"""A folder with the layout of the authors' code and sentences of our own."""

FILES = {
    "run_mcq_experiment.py": """
import torch_is_not_imported_here
TASKS = ["salary", "education"]
PROMPTS = {
    "salary": (
        "What may this {person} earn?\\n"
        "A: < $1, B: $1 - $2,000, C: > $2,000\\n"
        "One letter from A to C only."
    ),
    "education": "Which school?",
}
TASK_OPTIONS: dict[str, list[str]] = {"salary": list("ABC")}
SALARY_MIDPOINTS = {"A": 0, "B": 1_000, "C": 3_000}
raise SystemExit("this file was executed")
""",
    "run_2afc_experiment.py": """
PROMPTS = {"income": "Two versions of somebody. Which has more income?", "safety": "Whom would you ask, A or B? "}
def call_2afc(model, img_a_path, img_b_path, prompt):
    msg = [
        {"type": "text", "value": "Picture one:"},
        {"type": "image", "value": img_a_path},
        {"type": "text", "value": "Picture two:"},
        {"type": "image", "value": img_b_path},
        {"type": "text", "value": prompt},
    ]
    return model.generate(msg)
""",
    "run_nurse_doctor_experiment.py": 'OCCUPATION_PROMPT = "Which occupation, A. or B. thinks?"\n',
    "vlmeval_wrapper.py": '_MCQ_SUFFIX = "\\nThe letter alone, please."\n',
    "steering/model_utils.py": """
def prepare_generate_inputs(system_prompt=None):
    sys_text = system_prompt or "You answer questions."
    return sys_text
""",
}


def write(folder, **changed):
    """Write the files, some of them as they are changed (None: not there); returns the folder."""
    for name, text in (FILES | changed).items():
        if text is not None:
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    return folder
