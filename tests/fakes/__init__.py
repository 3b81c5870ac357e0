"""What stands in for engines, programs and devices, in all tests. Oracles are not here: they lie with what they judge.

`models`, `tables`, `memory`, `engine`, `drafts`: an engine of any program, on any device, whose models are arithmetic.
`toys`: configurations of programs for it. `plans`: plans of small programs, for tests that read or damage a plan.
`program`: a program for real models, watched. `cuda`, `cuda_driver`: a torch.cuda and a driver that only write down.
`sglang_modules`, `sglang_worker`, `sglang_scheduler`, `vllm_tables`, `vllm_sampling`, `vllm_modules`: what adapters
import of serving engines, which `places` puts there; `sglang_server` and `vllm_server` are servers made of it.
"""
