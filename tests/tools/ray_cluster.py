"""A Ray cluster of several nodes on this machine, for tests: `.venv-ray/bin/python ray_cluster.py FOLDER`.

A node is a set of Ray's processes with resources and an object store of its own. The first one has 2 processors and
stays. Prints the address, and does what each line of its input says, which it answers with one line:

    add RESOURCE    adds a node with 2 processors and 4 of the resource
    kill            kills that node at once, as a machine that loses power

It ends all when its input ends. FOLDER is for Ray's sockets and logs; its path has to be short.
"""

import sys

import ray
from ray.cluster_utils import Cluster

STORE_BYTES = 80 << 20
"""As small as Ray has them."""


def main(folder: str) -> None:
    cluster = Cluster()
    cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES, temp_dir=folder, include_dashboard=False)
    print(cluster.address, flush=True)
    node = None
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "add":
            node = cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES, resources={rest[0]: 4})
        elif word == "kill":
            cluster.remove_node(node, allow_graceful=False)
        print("done", flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
