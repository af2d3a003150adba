"""Simulated upgrades: alterations of torch, each with the difference that a comparison must find."""

from typing import NamedTuple


class Alteration(NamedTuple):
    """A change of torch, as a new version may have it.

    Attributes:
        wanted: The start of the name of the difference that must be found.
        needs: A feature of the cases that can show it (`cases.features`); empty for any.
        code: The code that alters torch, with `torch`, `dist`, `DDP`, `DistributedSampler`,
            `functools` and `warnings` at hand.
    """

    wanted: str
    needs: str
    code: str


OF_ALL_PARTS = {
    "shuffle seed": Alteration(
        "discrete: indices",
        "shuffle",
        """
        plain = DistributedSampler.__init__
        @functools.wraps(plain)
        def init(self, *args, **kwargs):
            plain(self, *args, **kwargs)
            self.seed += 1
        DistributedSampler.__init__ = init

        """,
    ),
    "padding rule": Alteration(
        "discrete: indices",
        "padding",
        """
        plain = DistributedSampler.__iter__
        @functools.wraps(plain)
        def iterate(self):
            indices = list(plain(self))
            short = len(self.dataset) % self.num_replicas
            if short and not self.drop_last and self.rank >= short:
                indices[-1] = len(self.dataset) - 1
            return iter(indices)
        DistributedSampler.__iter__ = iterate

        """,
    ),
    "cap unit": Alteration(
        "discrete: collectives",
        "a bucket cap",
        """
        plain = DDP.__init__
        @functools.wraps(plain)
        def init(self, *args, bucket_cap_mb=None, **kwargs):
            plain(self, *args, bucket_cap_mb=bucket_cap_mb and bucket_cap_mb / 4, **kwargs)
        DDP.__init__ = init

        """,
    ),
    "mean by a constant": Alteration(
        "rule: GRAD-2",
        "",
        """
        plain = DDP.__init__
        @functools.wraps(plain)
        def init(self, *args, **kwargs):
            plain(self, *args, **kwargs)
            for parameter in self.module.parameters():
                if parameter.requires_grad:
                    parameter.register_hook(lambda gradient: gradient * 2)
        DDP.__init__ = init

        """,
    ),
    "buffers no longer broadcast": Alteration(
        "rule: BUF-1",
        "",
        """
        plain = DDP.__init__
        @functools.wraps(plain)
        def init(self, *args, **kwargs):
            plain(self, *args, **kwargs)
            self.broadcast_buffers = False
        DDP.__init__ = init

        """,
    ),
    "another default": Alteration(
        "discrete: argument find_unused_parameters",
        "",
        """
        plain = DDP.__init__
        def init(self, module, device_ids=None, output_device=None, dim=0, broadcast_buffers=True, init_sync=True,
                 process_group=None, bucket_cap_mb=None, find_unused_parameters=True, **kwargs):
            plain(self, module, process_group=process_group, bucket_cap_mb=bucket_cap_mb,
                  find_unused_parameters=find_unused_parameters, **kwargs)
        DDP.__init__ = init

        """,
    ),
    "a new warning": Alteration(
        "discrete: warning",
        "",
        """
        plain = DDP.forward
        @functools.wraps(plain)
        def forward(self, *args, **kwargs):
            warnings.warn("this will change", FutureWarning)
            return plain(self, *args, **kwargs)
        DDP.forward = forward

        """,
    ),
    "another exception": Alteration(
        "discrete: capability scalar",
        "scale",
        """
        plain = DDP.__init__
        @functools.wraps(plain)
        def init(self, module, *args, **kwargs):
            if any(parameter.dim() == 0 for parameter in module.parameters()):
                raise ValueError("0-d parameters are not supported any more")
            plain(self, module, *args, **kwargs)
        DDP.__init__ = init

        """,
    ),
    "a gradient where none was": Alteration(
        "discrete: gradients that are None",
        "frozen",
        """
        plain = DDP.forward
        @functools.wraps(plain)
        def forward(self, *args, **kwargs):
            result = plain(self, *args, **kwargs)
            for parameter in self.module.parameters():
                if not parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
            return result
        DDP.forward = forward

        """,
    ),
    "another prefix": Alteration(
        "discrete: names in a saved state",
        "",
        """
        plain, load = DDP.state_dict, DDP.load_state_dict
        @functools.wraps(plain)
        def state_dict(self, *args, **kwargs):
            return {name.removeprefix("module."): value for name, value in plain(self, *args, **kwargs).items()}
        @functools.wraps(load)
        def load_state_dict(self, state, *args, **kwargs):
            return load(self, {f"module.{name}": value for name, value in state.items()}, *args, **kwargs)
        DDP.state_dict, DDP.load_state_dict = state_dict, load_state_dict

        """,
    ),
    "another order in an op": Alteration(
        "rounding: ",
        "",
        """
        plain = torch.nn.functional.linear
        def linear(x, weight, bias=None):
            return plain(x.flip(-1), weight.flip(-1), bias)
        torch.nn.functional.linear = linear

        """,
    ),
    "one ulp in an op": Alteration(
        "rule: LOSS-3",
        "",
        """
        plain = torch.nn.functional.linear
        def linear(x, weight, bias=None):
            y = plain(x, weight, bias)
            return y + (torch.nextafter(y.detach(), y.detach() + 1) - y.detach()) if y.dtype is torch.float32 else y
        torch.nn.functional.linear = linear

        """,
    ),
    "an op off by a thousandth": Alteration(
        "number: forward",
        "",
        """
        plain = torch.nn.functional.linear
        torch.nn.functional.linear = lambda x, weight, bias=None: plain(x, weight, bias) * 1.001

        """,
    ),
    "momentum dampened": Alteration(
        "rule: PARAM-3",
        "momentum",
        """
        plain = torch.optim.SGD.__init__
        @functools.wraps(plain)
        def init(self, *args, momentum=0.0, **kwargs):
            plain(self, *args, momentum=momentum, dampening=0.5 if momentum else 0.0, **kwargs)
        torch.optim.SGD.__init__ = init

        """,
    ),
    "an argument gone": Alteration(
        "discrete: argument drop_last",
        "",
        """
        class Sampler(DistributedSampler):
            def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, seed=0):
                super().__init__(dataset, num_replicas, rank, shuffle, seed)
        torch.utils.data.DistributedSampler = Sampler

        """,
    ),
}
"""Changes of several parts of torch, at least one of each class of differences."""
OF_CLIPPING = {
    "clipping epsilon": Alteration(
        "shift: optimizer",
        "clipping",
        """
        plain = torch.nn.utils.clip_grad._clip_grads_with_norm_
        torch.nn.utils.clip_grad._clip_grads_with_norm_ = (
            lambda parameters, norm, total, foreach=None: plain(parameters, norm, total + 9e-6, foreach)
        )
        """,
    ),
    "clipping by half": Alteration(
        "rule: PARAM-3",
        "clipping",
        """
        plain = torch.nn.utils.clip_grad._clip_grads_with_norm_
        torch.nn.utils.clip_grad._clip_grads_with_norm_ = (
            lambda parameters, norm, total, foreach=None: plain(parameters, norm / 2, total, foreach)
        )
        """,
    ),
    "clipping refuses NaN": Alteration(
        "discrete: surface torch.nn.utils.clip_grad_norm_",
        "",
        """
        plain = torch.nn.utils.clip_grad_norm_
        def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=True, foreach=None):
            return plain(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
        """,
    ),
    "clipping takes no iterator": Alteration(
        "discrete: surface clipping: an iterator",
        "",
        """
        plain = torch.nn.utils.clip_grad_norm_
        @functools.wraps(plain)
        def clip(parameters, *args, **kwargs):
            if not isinstance(parameters, (list, tuple, torch.Tensor)):
                raise TypeError("a list, please")
            return plain(parameters, *args, **kwargs)
        torch.nn.utils.clip_grad_norm_ = clip
        """,
    ),
}
"""Changes of the clipping of gradients."""
OF_OPTIMIZERS = {
    "epsilon of Adam": Alteration(
        "discrete: surface defaults of Adam",
        "",
        """
        plain = torch.optim.Adam.__init__
        @functools.wraps(plain)
        def altered(self, *args, **kwargs):
            if len(args) < 4:
                kwargs.setdefault("eps", 1e-6)
            plain(self, *args, **kwargs)
        torch.optim.Adam.__init__ = altered
        """,
    ),
    "decay of AdamW": Alteration(
        "discrete: surface defaults of AdamW",
        "",
        """
        plain = torch.optim.AdamW.__init__
        @functools.wraps(plain)
        def altered(self, *args, **kwargs):
            kwargs.setdefault("weight_decay", 0.1)
            plain(self, *args, **kwargs)
        torch.optim.AdamW.__init__ = altered
        """,
    ),
    "step of Adam": Alteration(
        "rule: PARAM-3: ",
        "adam",
        """
        plain = torch.optim.Adam.__init__
        @functools.wraps(plain)
        def altered(self, *args, **kwargs):
            plain(self, *args, **kwargs)
            for group in self.param_groups:
                group["lr"] *= 1.01
        torch.optim.Adam.__init__ = altered
        """,
    ),
    "nesterov in one kernel": Alteration(
        "rule: PARAM-3: ",
        "nesterov",
        """
        import sys
        plain = sys.modules['torch.optim.sgd']._multi_tensor_sgd
        def kernel(*args, nesterov=False, **kwargs):
            plain(*args, nesterov=False, **kwargs)
        sys.modules['torch.optim.sgd']._multi_tensor_sgd = kernel
        alone = sys.modules['torch.optim.sgd']._single_tensor_sgd
        def slow(*args, nesterov=False, **kwargs):
            alone(*args, nesterov=False, **kwargs)
        sys.modules['torch.optim.sgd']._single_tensor_sgd = slow
        """,
    ),
    "gradients kept as zeros": Alteration(
        "discrete: surface state of SGD",
        "",
        """
        plain = torch.optim.Optimizer.zero_grad
        def zero_grad(self, set_to_none=False):
            plain(self, set_to_none=set_to_none)
        torch.optim.Optimizer.zero_grad = zero_grad
        """,
    ),
    "a negative rate": Alteration(
        "discrete: surface refusal of SGD(lr=-1.0)",
        "",
        """
        plain = torch.optim.SGD.__init__
        @functools.wraps(plain)
        def altered(self, *args, **kwargs):
            kwargs.update(lr=abs(kwargs["lr"])) if "lr" in kwargs else None
            plain(self, *args, **kwargs)
        torch.optim.SGD.__init__ = altered
        """,
    ),
}
"""Changes of optimizers."""
OF_SCALERS = {
    "growth interval": Alteration(
        "discrete: surface AMP: state of GradScaler",
        "",
        """
        plain = torch.amp.GradScaler.__init__
        @functools.wraps(plain)
        def altered(self, *args, **kwargs):
            kwargs.setdefault("growth_interval", 1000)
            plain(self, *args, **kwargs)
        torch.amp.GradScaler.__init__ = altered
        """,
    ),
    "backoff squared": Alteration(
        "discrete: the loss scale",
        "scaler",
        """
        plain = torch.amp.GradScaler.__init__
        @functools.wraps(plain)
        def altered(self, *args, **kwargs):
            kwargs["backoff_factor"] = kwargs.get("backoff_factor", 0.5) ** 2
            plain(self, *args, **kwargs)
        torch.amp.GradScaler.__init__ = altered
        """,
    ),
    "overflow not skipped": Alteration(
        "rule: ",
        "scaler",
        """
        plain = torch.amp.GradScaler._maybe_opt_step
        @functools.wraps(plain)
        def altered(self, optimizer, state, *args, **kwargs):
            return optimizer.step(*args, **kwargs)
        torch.amp.GradScaler._maybe_opt_step = altered
        """,
    ),
}
"""Changes of the loss scaler."""
OF_SAMPLERS = {
    "seed of 16 bits": Alteration(
        "discrete: indices",
        "",
        """
        plain = DistributedSampler.__iter__
        @functools.wraps(plain)
        def altered(self):
            kept, self.seed = self.seed, ((self.seed + self.epoch) & 0xFFFF) - self.epoch
            try:
                return plain(self)
            finally:
                self.seed = kept
        DistributedSampler.__iter__ = altered
        """,
    ),
    "length in float32": Alteration(
        "discrete: surface length of the sampler",
        "",
        """
        plain = DistributedSampler.__init__
        @functools.wraps(plain)
        def altered(self, *args, **kwargs):
            plain(self, *args, **kwargs)
            if len(self.dataset) > 2**24 and not self.drop_last:
                self.num_samples = int(-(-torch.tensor(float(len(self.dataset))).item() // self.num_replicas)) + 1
        DistributedSampler.__init__ = altered
        """,
    ),
    "threshold of 100": Alteration(
        "discrete: indices",
        "",
        """
        plain = DistributedSampler.__iter__
        @functools.wraps(plain)
        def altered(self):
            indices = list(plain(self))
            return iter(indices[::-1] if len(self.dataset) > 100 else indices)
        DistributedSampler.__iter__ = altered
        """,
    ),
    "lazy iteration": Alteration(
        "discrete: surface iterator of the sampler",
        "",
        """
        plain = DistributedSampler.__iter__
        @functools.wraps(plain)
        def altered(self):
            yield from plain(self)
        DistributedSampler.__iter__ = altered
        """,
    ),
    "impossible ranks": Alteration(
        "rule: SHARD-7",
        "",
        """
        plain = DistributedSampler.__init__
        @functools.wraps(plain)
        def altered(self, dataset, num_replicas=None, rank=None, *args, **kwargs):
            plain(self, dataset, num_replicas, rank if rank is None else rank % max(num_replicas, 1), *args, **kwargs)
        DistributedSampler.__init__ = altered
        """,
    ),
    "no shuffle": Alteration(
        "discrete: argument shuffle",
        "",
        """
        class Sampler(DistributedSampler):
            def __init__(self, dataset, num_replicas=None, rank=None, shuffle=False, seed=0, drop_last=False):
                super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        torch.utils.data.DistributedSampler = Sampler
        """,
    ),
    "every other epoch": Alteration(
        "discrete: indices",
        "several epochs",
        """
        plain = DistributedSampler.set_epoch
        @functools.wraps(plain)
        def altered(self, epoch):
            plain(self, epoch // 2)
        DistributedSampler.set_epoch = altered
        """,
    ),
}
"""Changes of the sampler."""
OF_BUCKETS = {
    "default cap": Alteration(
        "discrete: surface the buckets of a large model",
        "",
        """
        plain = DDP.__init__
        @functools.wraps(plain)
        def altered(self, *args, bucket_cap_mb=None, **kwargs):
            plain(self, *args, bucket_cap_mb=4 if bucket_cap_mb is None else bucket_cap_mb, **kwargs)
        DDP.__init__ = altered
        """,
    ),
    "first bucket": Alteration(
        "discrete: surface the buckets of a large model",
        "",
        """
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 18
        """,
    ),
}
"""Changes of the plan of buckets."""
OF_DDP = {
    "no trainable parameters": Alteration(
        "discrete: surface refusal of a module whose parameters are all frozen",
        "",
        """
        plain = DDP.__init__
        @functools.wraps(plain)
        def altered(self, module, *args, **kwargs):
            if isinstance(module, torch.nn.Module) and not any(p.requires_grad for p in module.parameters()):
                raise ValueError("nothing to train")
            plain(self, module, *args, **kwargs)
        DDP.__init__ = altered
        """,
    ),
    "another list": Alteration(
        "discrete: surface output in a list",
        "",
        """
        plain = DDP.forward
        @functools.wraps(plain)
        def altered(self, *args, **kwargs):
            output = plain(self, *args, **kwargs)
            return list(output) if type(output) is list else output
        DDP.forward = altered
        """,
    ),
    "a new method": Alteration(
        "discrete: surface torch.nn.parallel.distributed.DistributedDataParallel.finalize_backward",
        "",
        """
        DDP.finalize_backward = lambda self: None
        """,
    ),
    "a method gone": Alteration(
        "discrete: surface torch.nn.parallel.distributed.DistributedDataParallel.will_sync_module_buffers",
        "",
        """
        plain = DDP.will_sync_module_buffers
        DDP._will_sync = plain
        DDP._pre_forward.__globals__
        del DDP.will_sync_module_buffers
        DDP.__getattr__ = lambda self, name, known=torch.nn.Module.__getattr__: (
            plain.__get__(self) if name == 'will_sync_module_buffers' else known(self, name)
        )
        """,
    ),
    "start of the last rank": Alteration(
        "rule: INIT-1",
        "",
        """
        module = torch.nn.parallel.distributed
        plain = module._sync_module_states
        @functools.wraps(plain)
        def states(*args, **kwargs):
            kwargs["src"] = dist.get_world_size() - 1
            plain(*args, **kwargs)
        module._sync_module_states = states
        """,
    ),
    "no_sync without finally": Alteration(
        "rule: GRAD-8",
        "no_sync",
        """
        import contextlib
        @contextlib.contextmanager
        def no_sync(self):
            kept, self.require_backward_grad_sync = self.require_backward_grad_sync, False
            yield
            self.require_backward_grad_sync = kept
        DDP.no_sync = no_sync
        """,
    ),
    "no_sync synchronises": Alteration(
        "rule: GRAD-8",
        "accumulation",
        """
        import contextlib
        DDP.no_sync = lambda self: contextlib.nullcontext()
        """,
    ),
    "divisor of join": Alteration(
        "rule: GRAD-11",
        "exhausted",
        """
        plain = DDP.join
        @functools.wraps(plain)
        def altered(self, divide_by_initial_world_size=True, enable=True, throw_on_early_termination=False):
            return plain(self, False, enable, throw_on_early_termination)
        DDP.join = altered
        """,
    ),
}
"""Changes of DistributedDataParallel."""
OF_GROUPS = {
    "one all_reduce more": Alteration(
        "discrete: collectives: ",
        "",
        """
        plain = DDP.forward
        @functools.wraps(plain)
        def altered(self, *args, **kwargs):
            dist.all_reduce(torch.zeros(1), group=self.process_group)
            return plain(self, *args, **kwargs)
        DDP.forward = altered
        """,
    ),
    "shapes not verified": Alteration(
        "discrete: collectives: ",
        "",
        """
        module = torch.nn.parallel.distributed
        module._verify_param_shape_across_processes = lambda *args, **kwargs: None
        """,
    ),
    "default of init_process_group": Alteration(
        "discrete: surface torch.distributed.init_process_group",
        "",
        """
        plain = dist.init_process_group
        def init_process_group(backend="gloo", *args, **kwargs):
            return plain(backend, *args, **kwargs)
        dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group
        """,
    ),
    "argument of all_reduce": Alteration(
        "discrete: surface torch.distributed.all_reduce",
        "",
        """
        plain = dist.all_reduce
        def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False, label=""):
            return plain(tensor, op, group, async_op)
        dist.all_reduce = dist.distributed_c10d.all_reduce = all_reduce
        """,
    ),
    "a new method of works": Alteration(
        "discrete: surface torch.distributed.Work.progress",
        "",
        """
        dist.Work.progress = lambda self: 0.0
        """,
    ),
}
"""Changes of collectives and process groups."""
OF_HOOKS = {
    "communication hook twice": Alteration(
        "discrete: surface a communication hook",
        "",
        """
        plain = DDP.register_comm_hook
        @functools.wraps(plain)
        def altered(self, state, hook):
            @functools.wraps(hook)
            def twice(state, bucket):
                hook(state, bucket).wait()
                return hook(state, bucket)
            plain(self, state, twice)
        DDP.register_comm_hook = altered
        """,
    ),
    "hooks of the module": Alteration(
        "discrete: surface the order of hooks",
        "",
        """
        plain = DDP._run_ddp_forward
        @functools.wraps(plain)
        def altered(self, *args, **kwargs):
            return self.module.forward(*args, **kwargs)
        DDP._run_ddp_forward = altered
        """,
    ),
}
"""Changes of hooks."""
OF_STATES = {
    "missing names accepted": Alteration(
        "discrete: surface a state without names",
        "",
        """
        plain = DDP.load_state_dict
        @functools.wraps(plain)
        def altered(self, state, strict=True, assign=False):
            return plain(self, state, strict=False)
        DDP.load_state_dict = altered
        """,
    ),
    "another container of a state": Alteration(
        "discrete: surface the state of a wrapped module",
        "",
        """
        plain = DDP.state_dict
        @functools.wraps(plain)
        def altered(self, *args, **kwargs):
            return dict(plain(self, *args, **kwargs))
        DDP.state_dict = altered
        """,
    ),
    "a lossy state": Alteration(
        "rule: STATE-",
        "reload",
        """
        plain = DDP.state_dict
        @functools.wraps(plain)
        def altered(self, *args, **kwargs):
            return {name: value.bfloat16().to(value.dtype) if value.is_floating_point() else value
                    for name, value in plain(self, *args, **kwargs).items()}
        DDP.state_dict = altered
        """,
    ),
    "no deep copy": Alteration(
        "discrete: surface a deep copy of a wrapped module",
        "",
        """
        def refuse(self, memo):
            raise TypeError("cannot be copied")
        DDP.__deepcopy__ = refuse
        """,
    ),
}
"""Changes of saved states and copies."""
OF_WARNINGS = {
    "a warning in no_sync": Alteration(
        "discrete: warning UserWarning: no_sync",
        "accumulation",
        """
        plain = DDP.no_sync
        @functools.wraps(plain)
        def altered(self):
            warnings.warn("no_sync is slow", UserWarning)
            return plain(self)
        DDP.no_sync = altered
        """,
    ),
    "a warning of one step": Alteration(
        "discrete: warning DeprecationWarning: a step",
        "momentum",
        """
        plain = torch.optim.SGD.step
        @functools.wraps(plain)
        def altered(self, *args, **kwargs):
            if self.defaults["momentum"]:
                warnings.warn("a step", DeprecationWarning)
            return plain(self, *args, **kwargs)
        torch.optim.SGD.step = altered
        """,
    ),
    "batch statistics": Alteration(
        "unbounded: buffers",
        "batch_norm",
        """
        plain = torch.nn.functional.batch_norm
        def batch_norm(x, mean, variance, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
            return plain(x, mean, variance, weight, bias, training, momentum / 2, eps)
        torch.nn.functional.batch_norm = batch_norm
        """,
    ),
}
"""Changes of warnings and of buffers."""
OF_ERRORS = {
    "shuffle and sampler": Alteration(
        "discrete: surface DataLoader with shuffle and sampler",
        "",
        """
        plain = torch.utils.data.DataLoader.__init__
        @functools.wraps(plain)
        def init(self, dataset, batch_size=1, shuffle=None, sampler=None, *args, **kwargs):
            plain(self, dataset, batch_size, None if sampler is not None else shuffle, sampler, *args, **kwargs)
        torch.utils.data.DataLoader.__init__ = init
        """,
    ),
    "an error in forward": Alteration(
        "discrete: end of the run: by itself -> ",
        "several steps",
        """
        plain = DDP.forward
        @functools.wraps(plain)
        def altered(self, *args, **kwargs):
            self._calls = getattr(self, "_calls", 0) + 1
            if self._calls > 1:
                raise RuntimeError("one forward only")
            return plain(self, *args, **kwargs)
        DDP.forward = altered
        """,
    ),
}
"""Changes of exceptions."""
ALTERATIONS = {
    **OF_ALL_PARTS,
    **OF_CLIPPING,
    **OF_OPTIMIZERS,
    **OF_SCALERS,
    **OF_SAMPLERS,
    **OF_BUCKETS,
    **OF_DDP,
    **OF_GROUPS,
    **OF_HOOKS,
    **OF_STATES,
    **OF_WARNINGS,
    **OF_ERRORS,
}
"""All alterations by name."""
