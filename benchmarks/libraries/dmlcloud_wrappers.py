"""dmlcloud's function that wraps a model."""

from bare import load

wrap_ddp = load("dmlcloud.core.model").wrap_ddp
