"""Thread states that a call may find, each as the text of a ``with`` item."""

from dutyfree.check.fuzz.draw import weighted

STATES = {
    "no_grad": "torch.no_grad()",
    "enable_grad": "torch.enable_grad()",
    "set_grad_enabled(False)": "torch.set_grad_enabled(False)",
    "inference_mode": "torch.inference_mode()",
    "inference_mode(False)": "torch.inference_mode(False)",
    "autocast": "torch.autocast('cpu', dtype=torch.bfloat16)",
    "autocast off": "torch.autocast('cpu', enabled=False)",
    "dispatch mode": "DispatchLog(side)",
    "function mode": "FunctionLog(side)",
    "device context": "torch.device('cpu')",
    "meta device context": "torch.device('meta')",
    "fake mode": "side.fake_mode",
    "profiler": "profiling(side)",
    "saved tensor hooks": "saved_tensors_log(side)",
    "dual level": "forward_ad.dual_level()",
    "anomaly mode": "torch.autograd.detect_anomaly(check_nan=False)",
    "below autograd": "torch._C._AutoDispatchBelowAutograd()",
    "torch function disabled": "torch._C.DisableTorchFunction()",
    "subclass functions disabled": "torch._C.DisableTorchFunctionSubclass()",
    "flop counter": "FlopCounterMode(display=False)",
    "kernel disabled": "side.op.set_kernel_enabled('cpu', False)",
    "python dispatcher": "enable_python_dispatcher()",
}

# A profiler costs a millisecond or more, so it stands for itself and is drawn less often.
ONE_STATE = weighted(
    *((3, name) for name in STATES if name not in ("profiler", "flop counter")), (1, "profiler"), (1, "flop counter")
)
