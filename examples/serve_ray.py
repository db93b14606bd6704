"""`brctc serve` on Ray Serve: replicas on any machine of a cluster, behind Ray's proxies.

    BRCTC_MODELS=exp/online BRCTC_REPLICAS=4 serve run serve_ray:app

A stream stays with the replica that took it, and the replicas' own limits hold. Who may come in is for a
proxy in front to say, or for BRCTC_SERVE_TOKEN.
"""

import os

from ray import serve

from brctc.serve import Hub, ServeOptions, make_app

MODELS = [os.path.abspath(path) for path in os.environ["BRCTC_MODELS"].split(os.pathsep)]
TOKEN = os.environ.get("BRCTC_SERVE_TOKEN")
VARIABLES = {"BRCTC_MODELS": os.pathsep.join(MODELS)} | ({"BRCTC_SERVE_TOKEN": TOKEN} if TOKEN else {})


def build_app() -> object:
    """In a replica, which has read the models before it takes streams."""
    # replicas are reached through the proxies alone, whose address is not theirs
    return make_app(Hub(ServeOptions(tuple(MODELS), host="0.0.0.0", token=TOKEN, open=TOKEN is None)))


@serve.deployment(
    num_replicas=int(os.environ.get("BRCTC_REPLICAS", "1")),
    max_ongoing_requests=100,
    graceful_shutdown_timeout_s=30,
    ray_actor_options={"num_cpus": 1, "runtime_env": {"env_vars": VARIABLES}},
)
@serve.ingress(build_app)
class Recognizer:
    """A replica: one process with its model thread."""


app = Recognizer.bind()
