"""Results, as readable lines and as JSON."""
import json
import statistics
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Unit:
    name: str
    decimals: int
    more_is_better: bool = False


US_PER_FILE = Unit("us/file", 2)
US = Unit("us", 0)
MS = Unit("ms", 1)
S = Unit("s", 2)
GB_PER_S = Unit("GB/s", 2, more_is_better=True)
MIB = Unit("MiB", 1)
OBJECTS = Unit("objects", 0)


@dataclass(frozen=True)
class Target:
    """The target: for the ratio, or for our value itself."""

    of: str  # "ratio" or "ours"
    bound: float
    more_is_better: bool = True

    def met(self, ours: float, ratio: float | None) -> bool:
        value = ratio if self.of == "ratio" else ours
        if value is None:
            return False
        return value >= self.bound if self.more_is_better else value < self.bound

    def words(self, unit: Unit) -> str:
        sign = ">=" if self.more_is_better else "<"
        return f"{sign} {self.bound:g}" if self.of == "ratio" else f"{sign} {self.bound:g} {unit.name}"


def at_least(ratio: float) -> Target:
    return Target("ratio", ratio)


@dataclass(frozen=True)
class Baseline:
    """The baseline of the comparison."""

    name: str
    samples: list[float]


@dataclass(frozen=True)
class Result:
    """One comparison. Samples are in `unit`, one per run."""

    name: str
    unit: Unit
    ours: list[float]
    baseline: Baseline | None = None
    target: Target | None = None

    @property
    def our_median(self) -> float:
        return statistics.median(self.ours)

    @property
    def baseline_median(self) -> float | None:
        return statistics.median(self.baseline.samples) if self.baseline else None

    @property
    def ratio(self) -> float | None:
        """Ours as a speed of the baseline's: 1.0 is as fast, 2.0 twice as fast."""
        theirs = self.baseline_median
        if theirs is None:
            return None
        return self.our_median / theirs if self.unit.more_is_better else theirs / self.our_median

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "ok" if self.target.met(self.our_median, self.ratio) else "MISSED"

    def line(self) -> str:
        parts = [f"{self.name:<28} ours {self._value(self.our_median):>15}"]
        baseline = f"{self.baseline.name} {self._value(self.baseline_median)}" if self.baseline else "-"
        ratio = f"{self.ratio:.2f}" if self.ratio is not None else "-"
        target = self.target.words(self.unit) if self.target else "-"
        parts += [f"{baseline:<44}", f"ratio {ratio:>5}", f"target {target:<12}", self.verdict]
        return "  ".join(parts).rstrip()

    def _value(self, value: float) -> str:
        return f"{value:.{self.unit.decimals}f} {self.unit.name}"

    def as_json(self) -> dict:
        target = self.target and {"of": self.target.of, "bound": self.target.bound,
                                  "more_is_better": self.target.more_is_better}
        baseline = self.baseline and {"name": self.baseline.name, "median": self.baseline_median,
                                      "samples": self.baseline.samples}
        return {"name": self.name, "unit": self.unit.name, "ours": {"median": self.our_median, "samples": self.ours},
                "baseline": baseline, "ratio": self.ratio, "target": target, "verdict": self.verdict or None}


class Report:
    """Collects results, and prints each as it comes."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.skipped: dict[str, str] = {}

    def add(self, name: str, unit: Unit, ours: list[float], baseline: Baseline | None = None,
            target: Target | None = None) -> None:
        result = Result(name, unit, ours, baseline, target)
        self.results.append(result)
        print(result.line(), flush=True)

    def skip(self, name: str, why: str) -> None:
        self.skipped[name] = why
        print(f"{name:<28} skipped: {why}", flush=True)

    def missed(self) -> list[str]:
        return [result.name for result in self.results if result.verdict == "MISSED"]

    def write_json(self, path: Path, about: dict) -> None:
        whole = {**about, "results": [result.as_json() for result in self.results], "skipped": self.skipped}
        path.write_text(json.dumps(whole, indent=2) + "\n")
