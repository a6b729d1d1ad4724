"""Entry point: the benchmarks SmallStar and SmallMME, and the suite `small-world`. Loads no torch."""

from ggss.probes import register, suites
from ggss.smallworld import NAME
from ggss.smallworld.smallmme import SMALLMME
from ggss.smallworld.smallstar import SMALLSTAR
from ggss.smallworld.suite import small_world

register(SMALLSTAR)
register(SMALLMME)
suites.register(NAME, small_world)
