"""Eight virtual CPU devices for the mesh laws; everything else runs on the first one unless it makes a mesh."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
