# ruff: noqa: E501  (rows of tables)
"""Write docs/fidelity.md: each equation, constant, definition and table of the paper, and where it is held here.

`python -m experiments.tools.fidelity` writes the page; a test checks that it is up to date and that every place and test exists.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "fidelity.md"
MEASURED = Path(__file__).with_name("release_differences.json")


class Held(NamedTuple):
    """`basis`: paper, release (where the paper is silent) or ours. `test`: `file` or `file::test`."""

    what: str
    basis: str
    place: str
    test: str
    difference: str = ""


class Printed(NamedTuple):
    """A table of the paper: its label or place there, the file, and the test of what is in it."""

    label: str
    file: str
    test: str = "test_paper_plan::test_every_table_comes_out_with_every_method"


EQUATIONS = (
    Held(
        "unit representatives of pooled tokens",
        "paper",
        "ggss.methods.subspace.representatives",
        "test_ggss::test_fit_equals_the_papers_equations",
        "The release averages all tokens of an image, the paper the retained ones (at most 2048): as in the paper. `pooling: release` does as the release.",
    ),
    Held(
        "contexts: for race (occupation, identity, gender), for gender (occupation, identity, race)",
        "paper",
        "ggss.data.pictures.held_fixed",
        "test_counterfactuals::test_one_attribute_leaves_the_other_in_the_context",
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
        "shifts of a context's variants, eq. appendix_pooled_shift: a row of S for each context and value",
        "paper",
        "ggss.methods.subspace.shifts",
        "test_ggss::test_fit_equals_the_papers_equations",
    ),
    Held(
        "basis of the subspace, eq. ggss-svd-basis",
        "paper",
        "ggss.methods.subspace.find_subspace",
        "test_ggss::test_fit_equals_the_papers_equations",
    ),
    Held(
        "reference point mu: the Fréchet mean of all representatives",
        "paper",
        "ggss.methods.ggss.discover",
        "test_ggss::test_fit_equals_the_papers_equations",
    ),
    Held(
        "protected magnitudes b(c) of the representatives, their median and deviation",
        "paper",
        "ggss.methods.subspace.protected_magnitude",
        "test_ggss::test_fit_equals_the_papers_equations",
    ),
    Held(
        "protected part of a token, eq. ggss-projection",
        "paper",
        "ggss.methods.spherical.move",
        "test_spherical::test_equals_the_papers_equations",
        "The closed form of the two products; the literal one is beside it.",
    ),
    Held(
        "target direction: exp at mu of the clean part, normalised",
        "paper",
        "ggss.methods.spherical.move",
        "test_spherical::test_near_the_antipode_the_printed_equations_are_kept_to_all_digits",
    ),
    Held(
        "gate, eq. ggss-gate", "paper", "ggss.methods.spherical.gate", "test_spherical::test_gate_floor_and_ceiling"
    ),
    Held(
        "slerp, eq. ggss-slerp-update, also beyond the target (beta above 1)",
        "paper",
        "ggss.sphere.slerp",
        "test_sphere::test_slerp_is_the_papers_two_sine_formula",
    ),
    Held(
        "norm kept, eq. ggss-norm-restore and prop. ggss-projection-norm",
        "paper",
        "ggss.methods.spherical.Spherical",
        "test_spherical::test_the_update_does_not_depend_on_a_tokens_size",
        "A token is divided by its norm without the 1e-10, so that tokens of any size keep theirs.",
    ),
    Held(
        "a zero token is left as it is",
        "paper",
        "ggss.methods.spherical.Spherical",
        "test_spherical::test_a_token_opposite_mu_and_a_zero_token_pass_unchanged",
        "So is one that is opposite to mu within the resolution of float32, for which the paper's log has no direction.",
    ),
    Held(
        "the projection removes the subspace, prop. ggss-projection-norm",
        "paper",
        "ggss.methods.spherical.move",
        "test_spherical::test_full_strength_without_gate_removes_the_subspace_of_a_tangent_frame",
    ),
)
CONSTANTS = (
    Held(
        "gate: kappa 5, floor 0.3",
        "paper",
        "ggss.methods.ggss.GateOptions",
        "test_published_constants::test_the_gate_has_sharpness_5_and_floor_0_3",
        "The released files store a floor of 0, which the released scripts replace when they steer.",
    ),
    Held(
        "k: the number of values less one",
        "paper",
        "ggss.methods.ggss.GgssOptions",
        "test_ggss::test_k_is_the_number_of_values_minus_one",
    ),
    Held(
        "Normalize divides by the norm + 1e-10; distances and tangent vectors below 1e-8 are zero",
        "paper",
        "ggss.sphere.normalize",
        "test_sphere::test_epsilon_conventions",
    ),
    Held(
        "clamp of cosines to 1e-7 from -1 and 1",
        "ours",
        "ggss.sphere.log",
        "test_sphere::test_small_and_near_antipodal_angles_are_accurate",
        "None: angles come from atan2 of half-chords. The clamp would lose every angle below 4.5e-4.",
    ),
    Held(
        "Karcher's iteration: from the normalised mean, until 1e-7 or 100 steps",
        "paper",
        "ggss.sphere.frechet_mean",
        "test_sphere::test_frechet_mean_starts_from_the_normalized_mean_and_stops_at_its_tolerance",
        "The two numbers themselves are held by `test_published_constants`.",
    ),
    Held(
        "epsilon of the gate's deviation: 1e-10",
        "paper",
        "ggss.methods.spherical.gate",
        "test_published_constants::test_the_gates_deviation_is_never_divided_by_zero",
        "Beside the 1e-8 that the release adds when it calibrates, two rows below.",
    ),
    Held(
        "at most 2048 tokens, seed 42",
        "paper",
        "ggss.activations.collect.kept_tokens",
        "test_published_constants::test_discovery_keeps_2048_tokens_drawn_with_seed_42_and_has_the_papers_prompt",
        "One permutation for a number of tokens; the release has one for each identity, which depends on the process.",
    ),
    Held(
        "the gate's median: the lower of two",
        "release",
        "ggss.methods.ggss.calibrated",
        "test_ggss::test_the_gate_is_calibrated_as_in_the_authors_code_by_default",
    ),
    Held(
        "the gate's deviation: of the sample, plus 1e-8",
        "release",
        "ggss.methods.ggss.calibrated",
        "test_ggss::test_the_median_and_the_deviation_of_the_gate_are_options",
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
        "of a module that returns a tuple the first element is taken",
        "paper",
        "ggss.steering.attach.attached",
        "test_published_constants::test_of_a_module_that_returns_a_tuple_the_first_element_is_steered",
    ),
    Held(
        "480 pictures: 6 occupations, 8 identities, 5 races, 2 genders",
        "paper",
        "ggss.data.layouts.FOCUS",
        "test_layouts::test_focus_becomes_a_manifest_that_every_command_reads",
        "FOCUS is read as it is published; SocialCounterfactuals and PAIRS too, which the paper's tables are not of.",
    ),
    Held(
        "discovery on cook, doctor, lawyer, nurse, teacher for race; on cook, lawyer, teacher for gender",
        "paper",
        "studies/paper.yaml",
        "test_paper_plan::test_the_plan_is_the_papers",
    ),
    Held(
        "images of one counterfactual set have one size",
        "paper",
        "ggss.data.counterfactuals.Counterfactuals",
        "test_counterfactuals::test_different_sizes_in_one_context_are_named",
    ),
    Held(
        "discovery prompt: Describe this image in detail.",
        "paper",
        "ggss.activations.collect.DISCOVERY_PROMPT",
        "test_collect::test_with_a_prompt_the_whole_model_is_run_and_gives_the_same_rows",
        "Discovery runs the vision path alone unless a prompt is given: the rows are the same.",
    ),
    Held(
        "five discovery prompts",
        "paper",
        "studies/paper.yaml",
        "test_published_constants::test_the_five_discovery_prompts_are_in_the_plan",
    ),
    Held(
        "checkpoint of a subspace, with its singular values, explained variance and magnitudes",
        "paper",
        "ggss.steering.checkpoints.read_pt",
        "test_steerer::test_the_papers_checkpoint",
        "The paper names the quantities and not the keys: these are ours. The files that the released scripts write have other names: `test_steering_released` reads those.",
    ),
    Held(
        "greedy answers; at most 8 tokens for MCQ and 2AFC, 16 for nurse/doctor, else 2048",
        "release",
        "ggss.probes.base.Probe",
        "test_suites::test_reflect_asks_about_the_occupation_that_is_held_out",
        "The paper gives 8 for MCQ and 2048 otherwise.",
    ),
)
METHODS = (
    Held(
        "INLP",
        "paper",
        "ggss.methods.inlp.null_directions",
        "test_classifiers::test_inlp_equals_a_plain_loop",
        "C = 1, at most 10 rounds, ended within 1e-6 of chance, as in the paper. Accuracy is that on the training rows, and below chance ends it too, as in the release; where the first classifier is no better than chance the release steers nothing, and here that is refused. Pooled rows, K - 1 directions in a round, the regression solved to convergence; the release keeps K and stops at its solver's tolerance: `components=release`. Where cuML is installed it sees tokens, drawn without a seed: that has no option.",
    ),
    Held(
        "INLP, spherical: trained on unit rows",
        "release",
        "ggss.methods.inlp.fit_spherical",
        "test_classifiers::test_what_spherical_inlp_is_trained_on_shows",
        "`trained_on=tangent` trains it where it projects.",
    ),
    Held(
        "MeanDiff",
        "paper",
        "ggss.methods.meandiff.ClassShift",
        "test_classifiers::test_meandiff_predicts_as_scikit_learn_does",
        "An RBF machine with C = 1 and gamma = scale, or multinomial logistic regression, solved to convergence; never cuML. The release classifies the mean of all pictures of a prompt: `pooled_over=prompt`.",
    ),
    Held(
        "MeanDiff: the shift of the predicted class, mean or Fréchet mean, is subtracted from every token",
        "paper",
        "ggss.methods.meandiff.SphericalShift",
        "test_classifiers::test_meandiff_subtracts_the_shift_of_the_images_class",
    ),
    Held(
        "C = 1, at most 10 rounds of INLP, 10 neighbours of BendVLM",
        "paper",
        "ggss.methods.inlp.InlpOptions",
        "test_published_constants::test_classifiers_and_neighbours",
    ),
    Held(
        "MeanDiff, spherical: the classifier sees unit rows",
        "release",
        "ggss.methods.meandiff.SphericalShift",
        "test_classifiers::test_a_classifier_of_directions_does_not_see_how_large_an_image_is",
        "`trained_on=pooled` gives it the pooled row.",
    ),
    Held(
        "LEACE on pooled activations",
        "paper",
        "ggss.methods.leace.fit_erasure",
        "test_leace::test_the_default_is_the_papers_text",
        "In tangent space mu takes the place of the mean. The package's defaults are kept: a shrunk covariance, singular values below 0.01 dropped. `covariance=tangent` fits the tangent vectors instead. The release takes eigenvectors of I - P: option `form=release`.",
    ),
    Held(
        "BendVLM on mean tokens",
        "release",
        "ggss.methods.bend.Bend",
        "test_bend::test_equals_its_definition_for_any_number_of_tokens",
        "The paper's e = vec(H) is `bend-token-euclidean` and `bend-token-spherical`; it needs as many tokens as the references have. Retrieval by the projected image and Fréchet means as prototypes are the release's.",
    ),
    Held(
        "BendVLM: cosine distances to all prototypes are made equal; the spherical form restores the norm",
        "paper",
        "ggss.methods.bend.BendSpherical",
        "test_bend::test_the_spherical_form_restores_the_norm_of_mean_and_image",
        "The release does not normalise the flat prototypes, nor the steered mean below alpha 1: `norms=release`. Its projector removes 15 directions for five values: `projector=release`.",
    ),
    Held(
        "BendVLM: one correction for an image while an answer is written",
        "paper",
        "ggss.models.families.FAMILIES",
        "test_models::test_a_generate_calls_the_site_once",
        "There is nothing to keep: a site is called once for all tokens of an answer.",
    ),
    Held(
        "BendVLM: prototypes of the 10 nearest references of a value",
        "paper",
        "ggss.methods.bend.closest",
        "test_bend::test_neighbours",
    ),
    Held(
        "LEACE's subspace inside gate and slerp",
        "paper",
        "ggss.methods.leace.fit_erasure",
        "test_leace::test_the_gated_form_uses_the_packages_u",
    ),
    Held(
        "the gate calibrated on tokens",
        "paper",
        "ggss.methods.ablations.fit_token_gate",
        "test_ablations::test_the_token_gate_is_calibrated_on_every_token",
    ),
    Held(
        "without gate",
        "paper",
        "ggss.methods.ablations.fit_without_gate",
        "test_ablations::test_without_gate_slerp_reaches_hard_projection_at_full_strength",
    ),
    Held(
        "without slerp: hard projection and gate",
        "paper",
        "ggss.methods.ablations.fit_without_slerp",
        "test_ablations::test_no_slerp_is_the_gate_times_hard_projection",
        "The release's chord is the option `path=chord`.",
    ),
    Held(
        "SVD ablations: spherical hard projection",
        "paper",
        "ggss.methods.ablations.fit_pooled_spherical",
        "test_svd::test_spherical_hard_projection_equals_the_printed_equation",
    ),
    Held(
        "SVD ablations: Euclidean projection around the mean",
        "paper",
        "ggss.methods.ablations.fit_pooled_euclidean",
        "test_svd::test_pooled_euclidean_equals_numpy",
    ),
    Held(
        "SVD ablations: centres and shifts for each token position",
        "paper",
        "ggss.methods.ablations.fit_token_spherical",
        "test_svd::test_token_spherical_equals_numpy",
        "The paper does not say which reference point they have: here the pooled one, so that they differ in the subspace alone. The release takes the mean token, and on the sphere normalised means instead of Fréchet means: `form=release`.",
    ),
    Held(
        "Euclidean and renormalised at the same gate",
        "paper",
        "ggss.methods.ablations.GatedEuclidean",
        "test_ablations::test_geometry_is_toggled_at_the_very_same_gate",
        "Which gate and subspace is open: here both of GGSS.",
    ),
    Held(
        "fairness instruction, to the letter",
        "paper",
        "ggss.methods.registry.FAIRNESS_INSTRUCTION",
        "test_published_constants::test_the_fairness_instruction_is_the_papers",
        "How it is joined to a prompt is open: here it is a line of its own.",
    ),
)
EVALUATION = (
    Held(
        "MCQ: divergence in bits of each race from everybody, salary alone",
        "release",
        "ggss.probes.metrics.jsd_to_overall",
        "test_metrics::test_the_published_jsd_is_scipys_in_bits_between_each_race_and_everybody",
        "Education, the spread and range of mean answers, and the divergence between pairs stand beside it.",
    ),
    Held(
        "MCQ: six bands of salary, four degrees of education",
        "release",
        "src/ggss/probes/data/reflect.json",
        "test_suites::test_reflect_asks_about_the_occupation_that_is_held_out",
    ),
    Held(
        "MCQ: spread and range over races of the bands' means",
        "release",
        "ggss.probes.people.measure_mcq",
        "test_metrics::test_the_spread_and_range_of_mean_answers_by_hand",
    ),
    Held(
        "2AFC: standard deviation of win rates over consistent pairs",
        "release",
        "ggss.probes.metrics.consistent_preference_std",
        "test_metrics::test_the_published_2afc_counts_pairs_whose_orders_agree",
        "All pairs are asked; `pairs: 0.5` asks about half, the same that the release draws with seed 42. The net preference over all answers stands beside it. The release also prints the preference between each two races; that is not computed here, and its breakdown by gender is the task `2afc-gender`.",
    ),
    Held(
        "Nurse/Doctor: gap in being called a nurse, on nurses; an open question",
        "release",
        "ggss.probes.people.measure_nurse_doctor",
        "test_suites::test_the_nurse_gap_looks_at_nurses_alone",
        "The small world's wording offers both words: its models learned it so. The gap in being called a doctor stands beside it; the accuracies that the release prints do not.",
    ),
    Held(
        "parsers",
        "release",
        "ggss.probes.parsers.released_mcq_letter",
        "test_parsers::test_the_release_reads_hard_answers_by_its_own_rule",
        "The release takes the first letter of an option anywhere in the text. By default ours never guesses, and counts what it cannot read; `parser: release` reads as the release does, and `ggss probe` prints how many answers the two read differently.",
    ),
    Held(
        "recognition, on the held-out occupation",
        "paper",
        "ggss.probes.people.measure_recognition",
        "test_suites::test_reflect_asks_about_the_occupation_that_is_held_out",
    ),
    Held(
        "CEO salary with its cap, resampled by biography",
        "paper",
        "ggss.probes.people.measure_ceo",
        "test_suites::test_the_cap_is_the_unsteered_maximum",
        "Our biographies: those of the paper are not published.",
    ),
    Held(
        "CEO salary: ten biographies without a name, 800 questions",
        "paper",
        "ggss.probes.people.ceo_items",
        "test_suites::test_a_biography_has_no_name",
    ),
    Held(
        "CEO salary: an integer of 4 to 9 digits, else any from 1000 on",
        "paper",
        "ggss.probes.parsers.released_salary",
        "test_parsers::test_a_salary_by_the_papers_rule",
        "Read by `parser: release`; the default takes an amount only if it is the one that is asserted.",
    ),
    Held(
        "prompts",
        "ours",
        "src/ggss/probes/data/reflect.json",
        "test_suites::test_further_questions_come_from_a_file",
        "The same questions, options and order of pictures in our own words. `wording: my.yaml` in a plan asks in others; `ggss data wording` makes that file of a clone of the release, with its system turn and its order of pictures.",
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
        "a run in which nothing can be read has no value, and is not chosen; how much can be read does not enter the choice",
        "ours",
        "ggss.analysis.selection.changes",
        "test_study_selection::test_how_much_can_be_read_does_not_enter_the_choice",
        "In the release that holds of MCQ and Nurse/Doctor; its 2AFC then has value 0, and a gender without a readable answer has rate 0: `parser: release`. More than half unreadable is marked in every table.",
    ),
    Held(
        "folds: identities 1 to 4 and 5 to 8",
        "paper",
        "ggss.analysis.selection.folds_of",
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
        "test_tables::test_every_interval_of_ours_holds_the_estimate_that_it_is_about",
        "The published estimate is printed first; where ours is another one, it stands in parentheses with its interval.",
    ),
    Held(
        "a gap's change: signed, over its fixed baseline",
        "paper",
        "ggss.analysis.comparison.Comparison.change",
        "test_comparison::test_a_smaller_bias_is_found_with_the_statistics_of_the_library",
    ),
    Held(
        "sign-flip tests over items and over identities, tasks combined",
        "paper",
        "ggss.analysis.comparison.sign_flip",
        "test_comparison::test_a_smaller_bias_is_found_with_the_statistics_of_the_library",
        "How tasks are combined is open: each is divided by its bias before. Corrected for many tests (Holm) beside it: ours.",
    ),
    Held(
        "MMStar by exact matching, exact McNemar",
        "paper",
        "ggss.probes.benchmarks.load_mmstar",
        "test_mmstar::test_accuracy_and_dimensions_against_a_plain_count",
        'The release adds a line that asks for the letter alone: `benchmarks: {mmstar: {path: MMStar.tsv, suffix: ...}}` adds one, and so does a wording that `ggss data wording` wrote. "answer is a dog" names no option here.',
    ),
    Held(
        'MMStar: "answer is b" in lower case; a suffix to each question',
        "release",
        "ggss.probes.parsers.option",
        "test_mmstar::test_a_suffix_is_added_to_each_question_and_makes_another_suite",
    ),
    Held(
        "MME totals and categories",
        "paper",
        "ggss.probes.benchmarks.mme",
        "test_mme::test_totals_are_the_published_ones_and_every_metric_lines_up_with_the_items",
    ),
    Held(
        "sites: the projector's last linear layer",
        "paper",
        "ggss.models.families.FAMILIES",
        "test_models::test_the_table_names_the_last_linear_of_the_projector",
        "Transformers 5 names the modules otherwise than the paper. Its other sites were preliminary; docs/sites.md measures sites on the small world.",
    ),
    Held(
        "Qwen3-VL's merger alone is steered",
        "paper",
        "ggss.models.families.FAMILIES",
        "test_doctor::test_qwen_leaks_around_the_merger_and_not_around_all_sites",
        "Its deepstack mergers carry image information around that site. `sites=all` steers them too: ours.",
    ),
    Held(
        "pixels: resized by PIL",
        "ours",
        "ggss.models.processors.backend_of",
        "test_families::test_a_saved_model_is_loaded_without_torchvision",
        "Where torchvision is installed, transformers' own processors resize with it, and the pixel values differ a little. A steerer records which of the two it was fitted with.",
    ),
    Held(
        "the four models in bfloat16 with device_map auto; seed 42; 10,000 resamples and permutations",
        "paper",
        "studies/paper.yaml",
        "test_paper_plan::test_the_plan_is_the_papers",
    ),
)


class Difference(NamedTuple):
    """Where the release does otherwise than the default here. option: what makes ours do the same; "" if nothing does.
    effects: names in release_differences.json. test: holds what is said without a number there."""

    item: str
    paper: str
    release: str
    default: str
    option: str
    effects: tuple[str, ...] = ()
    test: str = ""
    note: str = ""


SILENT = "silent"
STEERS = "test_release::test_the_plan_release_steers_as_the_authors_code"
TOKENS = "test_release_differences::test_the_measured_effect_on_tokens_is_repeated"
ANSWERS = "test_release_differences::test_the_measured_effect_on_answers_is_repeated"
COUNTS = "test_release_differences::test_the_counts_are_repeated"
OF_NUMBERS = {"tokens": TOKENS, "metrics": ANSWERS, "counts": COUNTS}  # by the kind of number that they hold
KINDS = ("unsteered", "ggss")
DIFFERENCES = (
    Difference(
        "size of pictures",
        SILENT,
        "longer side at most 512, LANCZOS",
        "as the file",
        "`max_side: 512`",
        (
            "rows of 1024 pixels: max_side",
            *(f"{model}, {kind}: max_side" for model in ("pixtral", "llava-vicuna", "qwen3-vl") for kind in KINDS),
        ),
        "test_release_plan::test_pictures_are_shrunk",
        "small-world pictures are halved to 32 pixels; its Pixtral and Qwen3-VL then have a quarter of their tokens, which they have not learned",
    ),
    Difference(
        "system turn",
        SILENT,
        "one for Qwen3-VL",
        "none",
        "`wording:`",
        tuple(f"qwen3-vl, {kind}: system" for kind in KINDS),
        "test_wording::test_families_are_asked_in_their_shapes",
        'the small world\'s turn is "answer with one letter .", which its models have not learned',
    ),
    Difference(
        "pictures of a 2AFC question",
        SILENT,
        "first, then all text, for LLaVA-NeXT and Pixtral",
        "where the text names them",
        "`wording:`",
        tuple(f"{model}, {kind}: layout" for model in ("pixtral", "llava-vicuna") for kind in KINDS),
        "test_wording::test_families_are_asked_in_their_shapes",
        'the small world\'s pictures are named "the first" and "the second"',
    ),
    Difference(
        "words of the questions",
        "not printed",
        "its own",
        "ours",
        "`wording:`",
        ("questions: wording",),
        "test_wording::test_the_published_numbers_of_questions_follow",
        "the words themselves have no effect that could be measured here: the small world's models know their own questions alone",
    ),
    Difference(
        "share of pairs",
        SILENT,
        "half, seed 42",
        "all",
        "`pairs: 0.5`",
        ("questions: pairs=0.5", "ggss: pairs=0.5"),
        "test_wording::test_the_published_numbers_of_questions_follow",
    ),
    Difference(
        "MMStar's questions",
        SILENT,
        "a line more, also to texts with a letter at the end of a sentence",
        "as VLMEvalKit",
        "`wording:` or `suffix:`",
        tuple(f"qwen3-vl, {kind}: suffix" for kind in KINDS),
        "test_wording::test_benchmarks_have_the_suffix_and_the_shapes",
        'SmallStar\'s line is "answer with one letter .", which the model has not learned',
    ),
    Difference(
        "pooled rows",
        "mean of at most 2,048 tokens",
        "mean of all, in bfloat16",
        "as the paper, in float32",
        "`pooling: release`",
        ("ggss: pooling=release",),
        "test_collect::test_the_authors_means_are_of_all_tokens_in_the_models_dtype",
        "the small world's model is in float32 and has 16 tokens, so it pools the same rows",
    ),
    Difference(
        "which 2,048 tokens",
        "seed 42",
        "for each identity others, in each process others",
        "one permutation, seed 42",
        "",
        ("svd-token-spherical: other tokens", "inlp-euclidean: other tokens"),
        "",
        "of the 2,880 of LLaVA-NeXT; no other model has more than 2,048 under `max_side: 512`",
    ),
    Difference("questions asked together", SILENT, "1", "16", "`batch_size: 1`", ("ggss: batch_size=1",)),
    Difference(
        "INLP",
        "K - 1 directions by rank",
        "K directions a round, not converged",
        "K - 1, converged",
        "`components=release`",
        ("inlp-euclidean: components=release", "inlp-spherical: components=release"),
        STEERS,
        "every fifth direction is a rounding error of the solver, so the last digits of a machine decide it",
    ),
    Difference(
        "INLP's rows",
        "pooled",
        "20,000 tokens without a seed if cuML is installed",
        "pooled",
        "",
        ("inlp-euclidean: tokens", "inlp-spherical: tokens"),
        "test_classifiers::test_inlp_equals_a_plain_loop",
        "not reachable: the release cannot repeat it either",
    ),
    Difference(
        "MeanDiff: mean row",
        "of an image",
        "of all images of a prompt",
        "of an image",
        "`pooled_over=prompt`",
        tuple(
            f"meandiff-{kind}: pooled_over=prompt"
            for kind in ("svm-euclidean", "svm-spherical", "lr-euclidean", "lr-spherical")
        ),
        STEERS,
        "where the two pictures of a 2AFC question are of two classes",
    ),
    Difference(
        "BendVLM: projector",
        "differences of the values' centres",
        "all singular vectors of 15 rows of rank 4 (5 on the sphere)",
        "the 4 of the differences",
        "`projector=release`",
        ("bend-euclidean: projector=release", "bend-spherical: projector=release"),
        "test_release::test_the_authors_projector_removes_mu_on_the_sphere_and_some_rounding",
        "10 of its directions are rounding errors; they weigh less in 4,096 dimensions than in the 96 here",
    ),
    Difference(
        "BendVLM: seed of the projector",
        SILENT,
        "none: each run has other directions",
        "0",
        "",
        ("bend-euclidean: seed", "bend-spherical: seed"),
        "",
        "two runs of the release differ as much",
    ),
    Difference(
        "BendVLM: norms",
        "restored",
        "not restored below alpha 1; prototypes not normalised",
        "restored",
        "`norms=release`",
        (
            "bend-euclidean: norms=release",
            "bend-spherical: norms=release",
            "bend-spherical: norms=release, alpha 0.5",
        ),
    ),
    Difference(
        "BendVLM: mean row",
        "of an image",
        "of all images of a prompt",
        "of an image",
        "`pooled_over=prompt`",
        ("bend-euclidean: pooled_over=prompt", "bend-spherical: pooled_over=prompt"),
    ),
    Difference(
        "BendVLM, all three",
        "all tokens of an image in a row",
        "its mean token",
        "as the release",
        "the three; the paper's are `bend-token-euclidean` and `bend-token-spherical`",
        (
            "bend-euclidean: projector=release norms=release pooled_over=prompt",
            "bend-spherical: projector=release norms=release pooled_over=prompt",
        ),
        STEERS,
    ),
    Difference(
        "LEACE",
        "P in tangent space; V = U",
        "eigenvectors of the lower triangle of I - P",
        "as the paper",
        "`form=release`, set in `paper.yaml`",
        ("leace-spherical: form=release", "leace-gated: form=release"),
        STEERS,
    ),
    Difference(
        "without slerp",
        "hard projection",
        "the chord",
        "as the paper",
        "`path=chord`, set in `paper.yaml`",
        ("ggss-no-slerp: path=chord",),
        STEERS,
    ),
    Difference(
        "per-token SVD: reference point and centres",
        SILENT,
        "mean token; normalised means",
        "pooled; Fréchet means",
        "`form=release`",
        (
            "svd-token-euclidean: form=release",
            "svd-token-spherical: form=release",
            "svd-token-spherical: form=release, unequal norms",
        ),
        STEERS,
    ),
    Difference(
        "reading of answers",
        SILENT,
        "the first letter anywhere",
        "never guesses",
        "`parser: release`",
        ("ggss: parser=release",),
        "test_parsers::test_the_release_reads_hard_answers_by_its_own_rule",
        "the small world's answers are one word",
    ),
    Difference(
        "nothing readable",
        SILENT,
        "2AFC 0; a gender without a readable answer has rate 0",
        "undefined",
        "`parser: release`",
        (),
        "test_metrics::test_where_nothing_is_readable_the_authors_rule_counts_zero",
        "2AFC 0 instead of undefined; a gap of 1 instead of undefined",
    ),
    Difference(
        "GGSS, all settings of a fit and of asking",
        "",
        "",
        "",
        "the plan `release`",
        ("questions: all", "ggss: all"),
        "test_wording::test_the_published_numbers_of_questions_follow",
    ),
    Difference(
        "files of LEACE",
        "",
        "store k as None",
        "",
        "read by `ggss convert`",
        (),
        "test_checkpoints::test_files_of_leace_leave_k_open",
        "none on tokens: the same matrices",
    ),
    Difference(
        "files of MeanDiff and BendVLM",
        "",
        "hold pickled objects",
        "",
        "refused; the sentence names the method to fit",
        (),
        "test_checkpoints::test_a_folder_converts_all_it_can_and_lists_the_rest",
        "fitted again instead",
    ),
)
TABLES = (
    Printed("tab:main_results", "main_results", "test_tables::test_main_results_hold_the_runs_numbers"),
    Printed("tab:mmstar", "capability"),
    Printed(
        "tab:component_ablation",
        "component_ablation",
        "test_tables::test_every_interval_of_ours_holds_the_estimate_that_it_is_about",
    ),
    Printed("tab:sensitivity_ablation", "sensitivity", "test_tables::test_sensitivity_grid_has_its_points"),
    Printed("tab:significance", "significance"),
    Printed("tab:added_baselines", "added_baselines"),
    Printed("tab:svd_ablation", "svd_ablation"),
    Printed("tab:hparams", "hyperparameters"),
    Printed("tab:alpha_choices", "alpha_choices"),
    Printed("tab:heldout_alpha", "heldout_alpha", "test_tables::test_held_out_columns_are_of_the_other_fold"),
    Printed("appendix held-out, all methods", "heldout_methods"),
    Printed("appendix MMStar, exact McNemar", "capability_significance"),
    Printed("tab:mmstar_dims", "capability_dimensions"),
    Printed("appendix MME", "mme"),
    Printed("appendix MME, subcategories", "mme_categories"),
    Printed(
        "tab:recognition",
        "recognition",
        "test_tables::test_recognition_is_of_the_attribute_that_is_not_steered",
    ),
    Printed("tab:alpha_dial", "alpha_dial", "test_tables::test_the_dial_steers_the_attribute_itself"),
    Printed(
        "appendix CEO salary",
        "ceo_salary",
        "test_one_spine::test_a_steered_salary_counts_no_more_than_the_largest_unsteered_one",
    ),
    Printed(
        "tab:prompt_baseline",
        "prompt_baseline",
        "test_tables::test_an_instruction_that_makes_all_answers_unreadable_is_still_shown",
    ),
    Printed("tab:geometry_ablation", "geometry_ablation", "test_tables::test_holm_is_over_the_whole_table"),
    Printed(
        "appendix gate calibration",
        "gate_calibration",
        "test_tables::test_gate_calibration_shows_how_the_gates_lie",
    ),
    Printed(
        "tab:prompt_invariance",
        "prompt_invariance",
        "test_tables::test_discovery_prompts_are_shown_with_their_cosine_and_their_own_run",
    ),
    Printed(
        "appendix per-model results, every method and strength",
        "results_report",
        "test_tables::test_report_has_every_method_at_every_strength",
    ),
)
SECTIONS = {
    "Equations": EQUATIONS,
    "Constants": CONSTANTS,
    "Methods": METHODS,
    "Evaluation and statistics": EVALUATION,
}


NAMES = {
    **{"mcq": "MCQ", "2afc": "2AFC", "nurse-doctor": "Nurse/Doctor", "smallstar": "SmallStar"},
    **{"pixtral": "Pixtral", "llava-vicuna": "LLaVA-NeXT", "qwen3-vl": "Qwen3-VL"},
}


def effects_of(row: Difference) -> dict[str, Any]:
    """By name, what was measured of a row."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    return {name: measured[name] for name in row.effects}


def effect_of(row: Difference) -> str:
    """What was measured, and what else is said of it."""
    effects = effects_of(row)
    parts = [
        (f"{_subject(name)}: " if len(effects) > 1 or "counts" in effect else "") + ", ".join(_said(effect))
        for name, effect in effects.items()
    ]
    return "; ".join([*parts, *([row.note] if row.note else [])])


def tests_of(row: Difference) -> list[str]:
    """Those of the numbers of a row, and that of what else it says."""
    effects = effects_of(row).values()
    of_numbers = [test for key, test in OF_NUMBERS.items() if any(key in effect for effect in effects)]
    return [*of_numbers, *([row.test] if row.test else [])]


def _subject(name: str) -> str:
    """What an effect is of: before the colon, and after a comma behind it."""
    subject, _, option = name.partition(": ")
    model, _, kind = subject.partition(", ")
    under = f" {kind}" if kind == "unsteered" else f" under {kind}" if kind else ""
    return ", ".join([NAMES.get(model, model) + under, *option.split(", ")[1:]])


def _said(effect: dict[str, Any]) -> list[str]:
    said = []
    if "tokens" in effect:
        said.append(f"{effect['tokens']:.2g} of the movement" if effect["tokens"] > 1e-6 else "none on tokens")
    if effect.get("cosine", 1.0) < 0.9995:
        said.append(f"cosine {effect['cosine']:.2f}")
    if "paper" in effect:
        said.append(f"default {_distance(effect['paper'])} from the paper")
    if "release" in effect:
        said.append(f"option {_distance(effect['release'])} from the release")
    said += [_metric(task, values) for task, values in effect.get("metrics", {}).items() if _moves(task, values)]
    if "changed" in effect:
        count, asked = effect["changed"]
        said.append(f"{count} of {asked} answers differ" if count else "no answer differs")
    for name, (before, after) in effect.get("counts", {}).items():
        said.append(f"{NAMES[name]} {before:,} " + (f"to {after:,}" if after != before else "in both"))
    return said


def _distance(value: float) -> str:
    return f"{value:.0e}" if value < 1e-3 else f"{value:.2g}"


def _moves(task: str, values: list[float | None]) -> bool:
    return len({_number(task, value) for value in values}) > 1


def _metric(task: str, values: list[float | None]) -> str:
    before, *after = [_number(task, value) for value in values]
    return f"{NAMES[task]} {before} to {'..'.join(dict.fromkeys(after))}"


def _number(task: str, value: float | None) -> str:
    if value is None:
        return "undefined"
    return f"{1000 * value:.1f}" if task == "mcq" else f"{value:.3f}"


def _tests(row: Difference) -> str:
    short = {TOKENS: "effect on tokens", ANSWERS: "effect on answers", COUNTS: "counts"}
    return ", ".join(short.get(test) or f"`{test}`" for test in tests_of(row))


def page() -> str:
    lines = [
        "# How this follows the paper",
        "",
        "Written by `python -m experiments.tools.fidelity`; do not edit. *paper*: its text. *release*: the behaviour of the authors'",
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
    lines += [
        "",
        "## What each choice is worth",
        "",
        "Where the authors' released code does otherwise than the default here, the option that does the same, and what that",
        "changes. `ggss study new --from release` is a plan with all of them. `make fidelity` measures it and writes this page.",
        "",
        "On planted tokens of 96 dimensions: how far the steered tokens of a question about two pictures are apart at alpha 1,",
        "as a share of their movement; the cosine of the largest angle between the two subspaces, if they differ; how far the",
        "default is from a float64 transcription of the paper's text, and the option from one of the release.",
        "",
        "On the small world: the published metrics (MCQ times 1000) by default and with the option, under the method at alpha 1,",
        "and how many answers differ; a metric that is not named does not change. Where rounding errors decide a direction,",
        "machines differ, and so do fits to tokens that differ by a millionth: five of these give the two ends of a range.",
        "Models of the small world are tiny, so this says which numbers a choice moves, not how far it moves those of a real",
        "model.",
        "",
        "Three tests hold the numbers of each row: *effect on tokens* is",
        f"`{TOKENS}`, *counts* is",
        f"`{COUNTS}`, and *effect on answers*, which `make release` runs, is",
        f"`{ANSWERS}`.",
        "",
        "| item | paper | release | default here | option | measured effect | tests |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {r.item} | {r.paper} | {r.release} | {r.default} | {r.option or 'none'} | {effect_of(r)} | {_tests(r)} |"
        for r in DIFFERENCES
    ]
    lines += [
        "",
        "## Tables",
        "",
        "| in the paper | file that `ggss study tables` writes | test |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {table.label} | `{table.file}` | `{table.test}` |" for table in TABLES]
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
