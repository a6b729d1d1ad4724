"""Methods of other papers, as plug-ins of ggss: each is one file, and registers itself when it is imported.

They come with ggss and are found by the entry point `rivals` of the group `ggss.methods`, as the methods of any other
package are. The order below is that of the list of methods. `ggss_rivals.ala` is no method, because it changes
answers and no activations; it is imported by its name.
"""

from ggss_rivals import bend_token, directional_ablation, rlace, fairsteer, sfid, sae  # noqa: F401  # isort: skip
from ggss_rivals import splince, angular, spherical_steering, wring, leopard, mimic, biopro, dso  # noqa: F401  # isort: skip
