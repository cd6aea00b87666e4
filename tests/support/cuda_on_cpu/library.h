// What turns a translation unit of kernels into a library that Python can call safely: the entry point, where
// shared memory lives, and the signals and checks that turn a bad access or an endless loop into a message.
#pragma once

#include "cuda_on_cpu.h"

namespace cuda_on_cpu {

template <class Args>
void call(void (*kernel)(Args), const void* arguments) { kernel(*static_cast<const Args*>(arguments)); }

struct Library {
    uintptr_t base;
    size_t static_shared;  // bytes that all `__shared__` variables of this library take
};
inline Library library;
inline pthread_t launching_thread;
inline uint64_t switches_at_tick;
inline unsigned ticks, idle_ticks;

inline int look_at_library(dl_phdr_info* info, size_t, void* found) {
    Library it{.base = info->dlpi_addr, .static_shared = 0};
    bool is_ours = false;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const auto& part = info->dlpi_phdr[i];
        const uintptr_t offset = reinterpret_cast<uintptr_t>(&library) - info->dlpi_addr - part.p_vaddr;
        if (part.p_type == PT_LOAD) is_ours |= offset < part.p_memsz;
        if (part.p_type == PT_TLS) it.static_shared = part.p_memsz;
    }
    if (is_ours) *static_cast<Library*>(found) = it;
    return is_ours;
}

// At every tick, four to a second of processor time: true if the launch hangs between two switches, or takes too long.
inline bool is_hanging() { return idle_ticks >= 4; }
inline bool is_out_of_time() {
    idle_ticks = std::exchange(switches_at_tick, outcome->switches) == outcome->switches ? idle_ticks + 1 : 0;
    return is_hanging() || ++ticks >= 4 * launch.seconds;
}

// A bad access, or the timer's tick. Runs on a stack of its own; a failure leaves it for good.
inline void on_signal(int number, siginfo_t* info, void* context) {
    const bool is_tick = number == SIGVTALRM, is_launching = pthread_equal(pthread_self(), launching_thread);
    if (!is_launching || running == &host) {
        if (!is_tick) signal(number, SIG_DFL);  // no kernel did this: it happens again on return, and ends the process
        else if (!is_launching) pthread_kill(launching_thread, number);
        return;
    }
    if (is_tick && !is_out_of_time()) return;
    const auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    outcome->instruction = uintptr_t(machine.gregs[REG_RIP]) - library.base;
    outcome->is_write = machine.gregs[REG_ERR] >> 1 & 1;
#else
    outcome->instruction = machine.pc - library.base;
#endif
    begin_failure(nullptr, 0);
    const auto* address = static_cast<const char*>(info->si_addr);
    const Block& block = *running->block;
    if (is_tick && is_hanging())
        say("ran for a second without a collective, an atomic or a poll");
    else if (is_tick)
        say("the launch took more than %u s", launch.seconds);
    else if (address >= block.dynamic_shared_end && address < block.dynamic_shared_end + PAGE)
        say("leaves the dynamic shared memory, which has %u bytes", launch.dynamic_shared);
    else if (address >= block.stacks && address < block.stacks + MAX_THREADS * STACK_STRIDE)
        say("needs more than the %zu KB of its stack", STACK_BYTES >> 10);
    else if (address == nullptr)
        say("uses an address that no buffer could have");
    else
        outcome->address = reinterpret_cast<uintptr_t>(address);
    end_launch();
}

// Our handlers for as long as a launch lasts; Python's come back with the end of the scope.
class SignalScope {
    static constexpr int NUMBERS[] = {SIGSEGV, SIGBUS, SIGVTALRM};
    struct sigaction before[3];
    stack_t stack_before;
    itimerval timer_before;

  public:
    SignalScope() {
        static char stack[64 << 10];
        const stack_t own{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof stack};
        sigaltstack(&own, &stack_before);
        struct sigaction action {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // never returned from, so nothing may stay blocked
        for (int i = 0; i < 3; i++) sigaction(NUMBERS[i], &action, &before[i]);
        const timeval quarter{.tv_sec = 0, .tv_usec = 250000};
        const itimerval tick{.it_interval = quarter, .it_value = quarter};
        setitimer(ITIMER_VIRTUAL, &tick, &timer_before);
    }
    ~SignalScope() {
        setitimer(ITIMER_VIRTUAL, &timer_before, nullptr);
        for (int i = 0; i < 3; i++) sigaction(NUMBERS[i], &before[i], nullptr);
        sigaltstack(&stack_before, nullptr);
    }
};

// The compiler's own checks (-fsanitize) call these; the location is the first member of what they are given.
struct Checked { const char* file; unsigned line, column; };
[[noreturn]] inline void fail_check(const Checked* check, const char* what) {
    begin_failure(check->file, check->line);
    say("%s", what);
    end_launch();
}

}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_CHECK(name, what) \
    extern "C" void __ubsan_handle_##name##_abort(cuda_on_cpu::Checked* check) { \
        cuda_on_cpu::fail_check(check, what); \
    }
CUDA_ON_CPU_CHECK(out_of_bounds, "an index leaves its array")
CUDA_ON_CPU_CHECK(type_mismatch_v1, "an address is null or not aligned for its type")
CUDA_ON_CPU_CHECK(shift_out_of_bounds, "a shift by a negative amount or by the whole width or more")
CUDA_ON_CPU_CHECK(divrem_overflow, "a division by zero, or of the lowest integer by -1")
CUDA_ON_CPU_CHECK(float_cast_overflow, "a cast of a number the integer cannot hold (use __float2int_rz and its like)")
CUDA_ON_CPU_CHECK(add_overflow, "a signed sum overflows")
CUDA_ON_CPU_CHECK(sub_overflow, "a signed difference overflows")
CUDA_ON_CPU_CHECK(mul_overflow, "a signed product overflows")
CUDA_ON_CPU_CHECK(negate_overflow, "a negation overflows")

extern "C" void* __wrap___tls_get_addr(const size_t* index) {
    return cuda_on_cpu::running->block->shared + index[1];
}

extern const cuda_on_cpu::Kernel cuda_on_cpu_kernels[];  // the generated part of the translation unit defines it

extern "C" __attribute__((visibility("default"))) void cuda_on_cpu_launch(const cuda_on_cpu::Launch* request,
                                                                           cuda_on_cpu::Outcome* result) {
    using namespace cuda_on_cpu;
    dl_iterate_phdr(look_at_library, &library);
    launch = *request, outcome = result, kernel = &cuda_on_cpu_kernels[launch.kernel];
    launching_thread = pthread_self();
    running = &host;
    block_threads = launch.block[0] * launch.block[1] * launch.block[2];
    random_state = (launch.seed + 1) * 0x9e3779b97f4a7c15ull;
    fruitless_polls = ticks = idle_ticks = 0, switches_at_tick = 0;
    const SignalScope signals;
    run_blocks(library.static_shared);
}
