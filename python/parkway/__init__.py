"""Parkway for Python programs: a cluster on this machine, and JAX on it.

import parkway
cluster = parkway.LocalCluster(slices=2)
cluster.connect()
import jax
jax.devices()  # the devices of both slices
"""

from parkway.local_cluster import ClusterError, LocalCluster

__all__ = ["ClusterError", "LocalCluster"]
