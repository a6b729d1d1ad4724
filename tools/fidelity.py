# ruff: noqa: E501  (rows of tables)
"""Write docs/fidelity.md: each equation, constant, definition and table of the paper, and where it is held here.

`python tools/fidelity.py` writes the page; a test checks that it is up to date and that every place and test exists.
"""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "fidelity.md"


class Held(NamedTuple):
    """`basis`: paper, release (where the paper is silent) or ours. `test`: `file` or `file::test`."""

    what: str
    basis: str
    place: str
    test: str
    difference: str = ""


EQUATIONS = (
    Held(
        "unit representatives of pooled tokens",
        "paper",
        "ggss.methods.subspace.representatives",
        "test_methods_ggss::test_fit_equals_the_papers_equations",
        "The release averages all tokens of an image, the paper the retained ones (at most 2048): as in the paper.",
    ),
    Held(
        "log, exp, distance on the sphere",
        "paper",
        "ggss.sphere.log",
        "test_sphere::test_log_exp_distance_equal_pymanopt",
    ),
    Held(
        "Fréchet mean by Karcher's iteration, eq. appendix_karcher",
        "paper",
        "ggss.sphere.frechet_mean",
        "test_sphere::test_frechet_mean_is_the_riemannian_optimum_found_by_pymanopt",
    ),
    Held(
        "shifts of a context's variants, eq. appendix_pooled_shift",
        "paper",
        "ggss.methods.subspace.shifts",
        "test_methods_ggss::test_fit_equals_the_papers_equations",
    ),
    Held(
        "basis of the subspace, eq. ggss-svd-basis",
        "paper",
        "ggss.methods.subspace.find_subspace",
        "test_methods_ggss::test_fit_equals_the_papers_equations",
    ),
    Held(
        "protected part of a token, eq. ggss-projection",
        "paper",
        "ggss.methods.spherical.move",
        "test_geodesic::test_equals_the_papers_equations",
        "The closed form of the two products; the literal one is beside it.",
    ),
    Held("gate, eq. ggss-gate", "paper", "ggss.methods.spherical.gate", "test_geodesic::test_gate_floor_and_ceiling"),
    Held(
        "slerp, eq. ggss-slerp-update",
        "paper",
        "ggss.sphere.slerp",
        "test_sphere::test_slerp_is_the_papers_two_sine_formula",
    ),
    Held(
        "norm kept, eq. ggss-norm-restore",
        "paper",
        "ggss.methods.spherical.Spherical",
        "test_geodesic::test_equals_the_papers_equations",
    ),
    Held(
        "the projection removes the subspace, prop. ggss-projection-norm",
        "paper",
        "ggss.methods.spherical.move",
        "test_geodesic::test_full_strength_without_gate_removes_the_subspace_of_a_tangent_frame",
    ),
)
CONSTANTS = (
    Held(
        "kappa 5, floor 0.3, k values less one",
        "paper",
        "ggss.methods.ggss.GateOptions",
        "test_methods_ggss::test_k_is_the_number_of_values_minus_one",
        "The released files store a floor of 0, which the released scripts replace when they steer.",
    ),
    Held(
        "clamp 1e-7, distances below 1e-8 are zero",
        "paper",
        "ggss.sphere.log",
        "test_sphere::test_epsilon_conventions",
        "More exact between close points than arccos of a clamped product.",
    ),
    Held(
        "at most 2048 tokens, seed 42",
        "paper",
        "ggss.activations.collection.kept_tokens",
        "test_collection::test_the_cap_draws_the_same_positions_for_images_of_one_size",
        "One permutation for a number of tokens; the release has one for each identity, which depends on the process.",
    ),
    Held(
        "the gate's median: the lower of two",
        "release",
        "ggss.methods.ggss.calibrated",
        "test_methods_ggss::test_the_gate_is_calibrated_as_in_the_authors_code_by_default",
    ),
    Held(
        "the gate's deviation: of the sample, plus 1e-8",
        "release",
        "ggss.methods.ggss.calibrated",
        "test_methods_ggss::test_the_median_and_the_deviation_of_the_gate_are_options",
    ),
    Held(
        "strengths 0.25, 0.5, 0.75, 1, 1.5; kappa 1, 2, 5, 10 and floors 0, 0.3, 0.5",
        "paper",
        "studies/paper.yaml",
        "test_study_plan::test_the_small_world_plan_has_every_method_and_the_papers_grid",
        "The paper's plan has the same ones, by `test_the_papers_plan_differs_from_the_small_worlds_only_in_material`.",
    ),
    Held(
        "steering in float32, cast back to the model's dtype",
        "paper",
        "ggss.methods.operator.apply",
        "test_attachment::test_half_precision_models",
    ),
    Held(
        "images of one counterfactual set have one size",
        "paper",
        "ggss.data.counterfactuals.Counterfactuals",
        "test_counterfactuals::test_different_sizes_in_one_context_are_named",
    ),
    Held(
        "discovery prompt",
        "paper",
        "ggss.activations.collection.DISCOVERY_PROMPT",
        "test_collection::test_with_a_prompt_the_whole_model_is_run_and_gives_the_same_rows",
        "Discovery runs the vision path alone unless a prompt is given: the rows are the same.",
    ),
    Held(
        "checkpoint of a subspace, with its singular values and magnitudes",
        "paper",
        "ggss.steering.published.read_pt",
        "test_steerer::test_the_papers_checkpoint",
        "The files that the released scripts write have other names: `test_steering_released` reads those.",
    ),
    Held(
        "greedy answers; at most 8 tokens for MCQ and 2AFC, 16 for nurse/doctor, else 2048",
        "release",
        "ggss.probes.base.Probe",
        "test_probes_suites::test_reflect_asks_about_the_occupation_that_is_held_out",
        "The paper gives 8 for MCQ and 2048 otherwise.",
    ),
)
METHODS = (
    Held(
        "INLP",
        "paper",
        "ggss.methods.inlp.null_directions",
        "test_methods_classifiers::test_inlp_equals_a_plain_loop",
        "C = 1, at most 10 rounds, ended within 1e-6 of chance, as in the paper. Pooled rows, K - 1 directions in a round; the release keeps K, and has tokens where cuML is installed.",
    ),
    Held(
        "INLP, spherical: trained on unit rows",
        "release",
        "ggss.methods.inlp.fit_spherical",
        "test_methods_classifiers::test_what_spherical_inlp_is_trained_on_shows",
    ),
    Held(
        "MeanDiff",
        "paper",
        "ggss.methods.meandiff.ClassShift",
        "test_methods_classifiers::test_meandiff_predicts_as_scikit_learn_does",
        "An RBF machine with C = 1 and gamma = scale, or multinomial logistic regression by scikit-learn; never cuML.",
    ),
    Held(
        "MeanDiff, spherical: the classifier sees unit rows",
        "release",
        "ggss.methods.meandiff.Curved",
        "test_methods_classifiers::test_a_classifier_of_directions_does_not_see_how_large_an_image_is",
    ),
    Held(
        "LEACE on pooled activations",
        "paper",
        "ggss.methods.leace.fitted",
        "test_methods_leace::test_the_default_is_the_papers_text",
        "The release takes eigenvectors of I - P: option `form=release`.",
    ),
    Held(
        "BendVLM on mean tokens",
        "release",
        "ggss.methods.bend.Bend",
        "test_methods_bend::test_equals_its_definition_for_any_number_of_tokens",
        "The paper's e = vec(H) is `bend-token-euclidean` and `bend-token-spherical`; it needs as many tokens as the references have.",
    ),
    Held(
        "BendVLM: prototypes of the 10 nearest references of a value",
        "paper",
        "ggss.methods.bend.closest",
        "test_methods_bend::test_neighbours",
    ),
    Held(
        "LEACE's subspace inside gate and slerp",
        "paper",
        "ggss.methods.leace.fitted",
        "test_methods_leace::test_the_gated_form_uses_the_packages_u",
    ),
    Held(
        "the gate calibrated on tokens",
        "paper",
        "ggss.methods.token_gate.fit",
        "test_methods_ablations::test_the_token_gate_is_calibrated_on_every_token",
    ),
    Held(
        "without gate",
        "paper",
        "ggss.methods.components.without_gate",
        "test_methods_ablations::test_without_gate_slerp_reaches_hard_projection_at_full_strength",
    ),
    Held(
        "without slerp: hard projection and gate",
        "paper",
        "ggss.methods.components.without_slerp",
        "test_methods_ablations::test_no_slerp_is_the_gate_times_hard_projection",
        "The release's chord is the option `path=chord`.",
    ),
    Held(
        "hard projections, pooled and per token",
        "paper",
        "ggss.methods.svd.pooled_spherical",
        "test_methods_svd::test_spherical_hard_projection_equals_the_printed_equation",
    ),
    Held(
        "Euclidean and renormalised at the same gate",
        "paper",
        "ggss.methods.geometry.GatedEuclidean",
        "test_methods_ablations::test_geometry_is_toggled_at_the_very_same_gate",
    ),
    Held(
        "fairness instruction",
        "paper",
        "ggss.methods.unsteered.fit",
        "test_methods_invariants::test_only_the_prompt_baseline_has_a_suffix",
    ),
)
EVALUATION = (
    Held(
        "MCQ: divergence in bits of each race from everybody, salary alone",
        "release",
        "ggss.probes.metrics.jsd_to_overall",
        "test_probes_metrics::test_the_published_jsd_is_scipys_in_bits_between_each_race_and_everybody",
        "Education, the spread and range of mean answers, and the divergence between pairs stand beside it.",
    ),
    Held(
        "MCQ: six bands of salary, four degrees of education",
        "release",
        "src/ggss/probes/data/reflect.json",
        "test_probes_suites::test_reflect_asks_about_the_occupation_that_is_held_out",
    ),
    Held(
        "MCQ: spread and range over races of the bands' means",
        "release",
        "ggss.probes.mcq.measure",
        "test_probes_metrics::test_the_spread_and_range_of_mean_answers_by_hand",
    ),
    Held(
        "2AFC: standard deviation of win rates over consistent pairs",
        "release",
        "ggss.probes.metrics.consistent_preference_std",
        "test_probes_metrics::test_the_published_2afc_counts_pairs_whose_orders_agree",
        "All pairs are asked; `pairs: 0.5` asks about half, drawn with seed 42 in the order of our items. The net preference over all answers stands beside it. The release also prints the preference between each two races; that is not computed here, and its breakdown by gender is the task `2afc-gender`.",
    ),
    Held(
        "Nurse/Doctor: gap in being called a nurse, on nurses; an open question",
        "release",
        "ggss.probes.nurse_doctor.measure",
        "test_probes_suites::test_the_nurse_gap_looks_at_nurses_alone",
        "The small world's wording offers both words: its models learned it so. The gap in being called a doctor stands beside it; the accuracies that the release prints do not.",
    ),
    Held(
        "parsers",
        "ours",
        "ggss.probes.parsers.option",
        "test_probes_parsers::test_option",
        "The release takes the first letter of an option anywhere in the text; ours never guesses, and counts what it cannot read.",
    ),
    Held(
        "recognition, on the held-out occupation",
        "paper",
        "ggss.probes.recognition.measure",
        "test_probes_suites::test_reflect_asks_about_the_occupation_that_is_held_out",
    ),
    Held(
        "CEO salary with its cap, resampled by biography",
        "paper",
        "ggss.probes.ceo.measure",
        "test_probes_suites::test_the_cap_is_the_unsteered_maximum",
        "Our biographies: those of the paper are not published.",
    ),
    Held(
        "CEO salary: ten biographies without a name, 800 questions",
        "paper",
        "ggss.probes.ceo.items",
        "test_probes_suites::test_a_biography_has_no_name",
    ),
    Held(
        "CEO salary: an integer of 4 to 9 digits, else any from 1000 on",
        "paper",
        "ggss.probes.parsers.salary",
        "test_probes_parsers::test_salary",
    ),
    Held(
        "prompts",
        "ours",
        "src/ggss/probes/data/reflect.json",
        "test_probes_suites::test_further_questions_come_from_a_file",
        "The same questions, options and order of pictures in our own words. `suite: {name: reflect, wording: my.yaml}` asks in others.",
    ),
    Held(
        "evaluated pictures take no part in discovery",
        "paper",
        "ggss.study.checking.CheckedPlan",
        "test_paper_plan::test_no_picture_that_is_asked_about_takes_part_in_discovery",
        "The paper's text has MCQ and 2AFC on SocialCounterfactuals in one place; its release has them on the CEOs of FOCUS, as here.",
    ),
    Held(
        "best-avg-α: one strength for all tasks of a method and model",
        "paper",
        "ggss.analysis.selection.choose",
        "test_study_selection::test_choice_is_the_minimum_by_brute_force",
        "Appendix B.1 once says one for each task; the tables are of one for all, and so is this. Of strengths with a different number of tasks, those with the most are compared: ours.",
    ),
    Held(
        "Avg: unweighted, over the tasks with a bias to begin with",
        "paper",
        "ggss.analysis.selection.average_change",
        "test_study_selection::test_published_averages_follow_from_published_values",
    ),
    Held(
        "a run is invalid if nothing can be read; how much can be read does not enter the choice",
        "release",
        "ggss.analysis.selection.changes",
        "test_study_selection::test_how_much_can_be_read_does_not_enter_the_choice",
        "More than half unreadable is marked in every table: ours.",
    ),
    Held(
        "folds: identities 1 to 4 and 5 to 8",
        "paper",
        "ggss.analysis.crossfit.folds_of",
        "test_study_selection::test_the_published_folds_are_identities_1_to_4_and_5_to_8",
    ),
    Held(
        "percentile bootstrap over items and over identities",
        "paper",
        "ggss.analysis.comparison.Comparison.change",
        "test_one_spine::test_bias_as_the_tables_print_it",
        "Beside ours (jackknife, Fieller), which come first: docs/validity.md shows why.",
    ),
    Held(
        "intervals by jackknife and Fieller, with the estimate that they are about",
        "ours",
        "ggss.report.cells.changed",
        "test_report_tables::test_every_interval_of_ours_holds_the_estimate_that_it_is_about",
        "The published estimate is printed first; where ours is another one, it stands in parentheses with its interval.",
    ),
    Held(
        "a gap's change: signed, over its fixed baseline",
        "paper",
        "ggss.analysis.comparison.Comparison.change",
        "test_analysis_comparison::test_a_smaller_bias_is_found_with_the_statistics_of_the_library",
    ),
    Held(
        "sign-flip tests over items and over identities",
        "paper",
        "ggss.analysis.comparison.sign_flip",
        "test_analysis_comparison::test_a_smaller_bias_is_found_with_the_statistics_of_the_library",
    ),
    Held(
        "MMStar by exact matching, exact McNemar",
        "paper",
        "ggss.probes.mmstar.load",
        "test_probes_mmstar::test_accuracy_and_dimensions_against_a_plain_count",
        'The release adds a line that asks for the letter alone: `benchmarks: {mmstar: {path: MMStar.tsv, suffix: ...}}` adds one. "answer is a dog" names no option here.',
    ),
    Held(
        'MMStar: "answer is b" in lower case; a suffix to each question',
        "release",
        "ggss.probes.parsers.option",
        "test_probes_mmstar::test_a_suffix_is_added_to_each_question_and_makes_another_suite",
    ),
    Held(
        "MME totals and categories",
        "paper",
        "ggss.probes.mme_scores.mme",
        "test_probes_mme::test_totals_are_the_published_ones_and_every_metric_lines_up_with_the_items",
    ),
    Held(
        "sites: the projector's last linear layer",
        "paper",
        "ggss.models.families.FAMILIES",
        "test_models::test_the_table_names_the_last_linear_of_the_projector",
        "Transformers 5 names the modules otherwise than the paper. Its other sites were preliminary; docs/sites.md measures sites on the small world.",
    ),
    Held(
        "the four models in bfloat16 with device_map auto; seed 42; 10,000 resamples and permutations",
        "paper",
        "studies/paper.yaml",
        "test_paper_plan::test_the_plan_is_the_papers",
    ),
)
TABLES = {
    "tab:main_results": "main_results",
    "tab:mmstar": "capability",
    "tab:component_ablation": "component_ablation",
    "tab:sensitivity_ablation": "sensitivity",
    "tab:significance": "significance",
    "tab:added_baselines": "added_baselines",
    "tab:svd_ablation": "svd_ablation",
    "tab:hparams": "hyperparameters",
    "tab:alpha_choices": "alpha_choices",
    "tab:heldout_alpha": "heldout_alpha",
    "appendix held-out, all methods": "heldout_methods",
    "appendix MMStar, exact McNemar": "capability_significance",
    "tab:mmstar_dims": "capability_dimensions",
    "appendix MME": "mme",
    "appendix MME, subcategories": "mme_categories",
    "tab:recognition": "recognition",
    "tab:alpha_dial": "alpha_dial",
    "appendix CEO salary": "ceo_salary",
    "tab:prompt_baseline": "prompt_baseline",
    "tab:geometry_ablation": "geometry_ablation",
    "appendix gate calibration": "gate_calibration",
    "tab:prompt_invariance": "prompt_invariance",
}
SECTIONS = {
    "Equations": EQUATIONS,
    "Constants": CONSTANTS,
    "Methods": METHODS,
    "Evaluation and statistics": EVALUATION,
}


def page() -> str:
    lines = [
        "# How this follows the paper",
        "",
        "Written by `python tools/fidelity.py`; do not edit. *paper*: its text. *release*: the behaviour of the authors'",
        "released code, where the text is silent or the printed values show it. *ours*: neither says, or ours behaves",
        "better; then the difference is named.",
    ]
    for title, rows in SECTIONS.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| what | from | where | test | known difference |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [f"| {r.what} | {r.basis} | `{r.place}` | `{r.test}` | {r.difference} |" for r in rows]
    lines += ["", "## Tables", "", "| in the paper | file that `ggss study tables` writes |", "| --- | --- |"]
    lines += [f"| {name} | `{file}` |" for name, file in TABLES.items()]
    lines += [
        "",
        "`prompt_invariance` has the five prompts of the paper in `studies/paper.yaml`, and five of the small world's words in",
        "`studies/discovery-prompts.yaml` (`make discovery-prompts` writes `results/discovery-prompts`). Elsewhere discovery",
        "runs the vision path alone, with no prompt; the table compares the two.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
