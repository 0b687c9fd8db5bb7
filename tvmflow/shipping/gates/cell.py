"""Define the release gate of a cell: rules that a challenger must pass."""

from __future__ import annotations

from tvmflow.config.params import ReleaseParams
from tvmflow.evaluation.latency_ratio import Comparison
from tvmflow.evaluation.scorecard import Scorecard


def judge(
    card: Scorecard, champion_accuracy: float | None, comparison: Comparison | None, rules: ReleaseParams
) -> tuple[str, ...]:
    """Return all reasons against a challenger by its scorecard and its comparison with the champion, if there is one;
    empty if it may be released.
    """
    return (*_absolute(card, rules), *_against_champion(card, champion_accuracy, comparison, rules))


def _absolute(card: Scorecard, rules: ReleaseParams) -> list[str]:
    reasons = [one.text for one in card.warnings]
    estimated = card.coverage_estimated
    if card.coverage + (estimated if rules.count_estimates else 0.0) < rules.min_coverage:
        beside = f" and estimated for {estimated:.1%}" if estimated else ""
        reasons.append(
            f"schedules were measured for {card.coverage:.1%} of its operations{beside}, at "
            f"least {rules.min_coverage:.1%} "
            "is asked for; tune it on a device of this kind"
        )
    agreement = card.agreement.top1_agreement
    if agreement is not None and agreement < rules.min_top1_agreement:
        reasons.append(
            f"top-1 agreement with the source is {agreement:.2%}, at least {rules.min_top1_agreement:.2%} is required"
        )
    accuracy = card.accuracy
    if accuracy and accuracy.built < accuracy.source - rules.max_accuracy_drop:
        reasons.append(
            f"accuracy {accuracy.built:.2%} is more than {rules.max_accuracy_drop:.2%} below the "
            f"source's {accuracy.source:.2%}"
        )
    return reasons


def _against_champion(
    card: Scorecard, champion_accuracy: float | None, comparison: Comparison | None, rules: ReleaseParams
) -> list[str]:
    reasons = []
    if champion_accuracy is not None and card.accuracy:
        accuracy = card.accuracy.built
        if accuracy < champion_accuracy - rules.max_accuracy_drop:
            reasons.append(
                f"accuracy {accuracy:.2%} is more than {rules.max_accuracy_drop:.2%} below the champion's "
                f"{champion_accuracy:.2%}"
            )
    if comparison is not None:
        bound = 1 + rules.max_slowdown
        if comparison.low > bound:
            reasons.append(f"it is slower than the champion: ratio {comparison}, at most {bound:g} is allowed")
        elif comparison.high > bound:
            reasons.append(
                f"it is not shown to be as fast as the champion: ratio {comparison}, its upper end must be "
                f"at most {bound:g} "
                f"(release.max_slowdown); {_how_to_go_on(comparison)}"
            )
    return reasons


def _how_to_go_on(comparison: Comparison) -> str:
    """Return what to do if the interval of a ratio is inconclusive."""
    if comparison.badges:
        return (
            f"the machine was disturbed ({', '.join(comparison.badges)}): promote with --wait-quiet SECONDS, "
            f"which waits for an idle machine"
        )
    return "more rounds narrow the interval (release.compare_rounds)"
