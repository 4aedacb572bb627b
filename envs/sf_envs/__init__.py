"""Small environments that come with sf: to try things out, and to test with.

Found through the entry-point group `sf.envs`; a package of your own can offer such a table as well.
"""

from __future__ import annotations

ENVIRONMENTS = {
    "sf/CatchPixels-v0": "sf_envs.catch:CatchPixels",
    "sf/TwoAgentEcho-v0": "sf_envs.echo:TwoAgentEcho",
    "sf/Counter-v0": "sf_envs.counter:Counter",
}
"""Id to where the class or function that makes it is."""
