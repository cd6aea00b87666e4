// Runs CUDA kernels on the CPU, one fiber a thread, so that a machine without a GPU can test their own source.
//
// Does: several blocks in flight, interleaved in an order drawn from a seed; warp and block collectives that
// complete when every named thread has arrived and fail, naming the line, when one cannot; shared memory a block,
// poisoned at its start; spins that end in a failure; bad accesses that end in a message. Does not: model weak
// memory (it is sequentially consistent, so a missing fence stays unseen), interleave plain accesses between two
// collectives, or time anything. CUDA's own names are in intrinsics.h, which follows this; run.py builds and calls.
//
// How `__shared__` works: it is `thread_local`. Code in a shared library asks `__tls_get_addr` where such a
// variable lives; the link wraps that function, and ours answers with the storage of the running block.
#pragma once

#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

#include <bit>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <source_location>
#include <utility>
#include <vector>

struct uint3 { unsigned x, y, z; };

namespace cuda_on_cpu {

using Where = std::source_location;

constexpr unsigned WARP = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / WARP;
constexpr size_t PAGE = 4096, STACK_BYTES = 64 << 10, STACK_STRIDE = STACK_BYTES + PAGE;
constexpr unsigned MAX_DYNAMIC_SHARED = 227 << 10;

struct Block;
struct Fiber;

// A collective: its name for messages, and, for warps, what gives every lane named in `mask` its result.
struct Collective {
    const char* name;
    void (*resolve)(Fiber* lanes, unsigned mask);
};

struct Fiber {
#if defined(__x86_64__)
    void* stack_pointer;
#else
    ucontext_t context;
#endif
    Block* block;
    uint3 thread;
    unsigned warp, lane;
    // The collective it stands in: written on arrival, read by whoever arrives last.
    const Collective* kind;
    unsigned mask, source;
    uint64_t value, result;
    Where where;
};

struct Warp {
    unsigned alive, runnable, waiting;  // bits by lane; waiting: in a warp collective
};

struct Block {
    uint3 index;
    Fiber* fibers;
    Warp warps[MAX_WARPS];
    unsigned runnable_warps, alive, at_barrier;  // bits by warp; threads; threads
    char *shared, *dynamic_shared, *dynamic_shared_end, *stacks;
    bool active;
};

// What run.py hands over and gets back; it mirrors both.
struct Launch {
    const void* arguments;
    char* stacks;  // of all libraries in turn: their guard pages would exceed what the kernel allows a process
    uint64_t seed;
    unsigned kernel, grid[3], block[3], dynamic_shared, blocks_in_flight, patience, seconds;
};
struct Outcome {
    uint64_t switches;
    uintptr_t address, instruction;  // of a bad access; the latter relative to the library; 0 if none
    int failed, is_write;
    char message[2000];
};
struct Kernel {
    const char* name;
    void (*call)(const void* arguments);
};

// The one machine of this library; one launch at a time.
inline Launch launch;
inline Outcome* outcome;
inline const Kernel* kernel;
inline Fiber* running;
inline Fiber host;  // the launch itself: starts blocks, and is returned to when one ends or something failed
inline std::vector<Block> slots;
inline unsigned block_threads;
inline uint64_t random_state;
inline unsigned fruitless_polls;

inline uint64_t random_bits() {  // 32 of them, xorshift64*
    random_state ^= random_state >> 12, random_state ^= random_state << 25, random_state ^= random_state >> 27;
    return random_state * 0x2545f4914f6cdd1dull >> 32;
}
// Every set bit is as likely as the next: a bias towards the lowest lets warps run almost in order and hides races.
inline unsigned random_set_bit(unsigned bits) {
    for (unsigned skip = unsigned(random_bits() % unsigned(std::popcount(bits))); skip; skip--) bits &= bits - 1;
    return unsigned(std::countr_zero(bits));
}

// ---- Context switch ---------------------------------------------------------------------------------------------

void fiber_main();

#if defined(__x86_64__)
// Saves what a call must preserve on the old stack, then goes on where the new stack left off.
extern "C" void cuda_on_cpu_swap(void** save, void* load);
asm(R"(
    .text
    .p2align 4
    .hidden cuda_on_cpu_swap
    .type cuda_on_cpu_swap, @function
cuda_on_cpu_swap:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
inline void swap_context(Fiber& from, Fiber& to) { cuda_on_cpu_swap(&from.stack_pointer, to.stack_pointer); }
inline void prepare_context(Fiber& fiber, char* stack, unsigned number) {
    // Tops are staggered: at equal offsets within a page all stacks would compete for the same cache sets.
    auto* top = reinterpret_cast<uintptr_t*>(stack + STACK_BYTES - number % 16 * 256);
    *--top = 0;  // no caller; also aligns the stack as a function expects it on entry
    *--top = reinterpret_cast<uintptr_t>(&fiber_main);
    fiber.stack_pointer = top - 6;  // the six registers that the swap pops
}
#else
inline void swap_context(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }
inline void prepare_context(Fiber& fiber, char* stack, unsigned) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stack, fiber.context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&fiber.context, fiber_main, 0);
}
#endif

inline void switch_to(Fiber& to) {
    if (running == &to) return;
    Fiber& from = *std::exchange(running, &to);
    outcome->switches++;
    swap_context(from, to);
}

// ---- Failures: the first ends the launch; fibers are dropped where they stand -----------------------------------

inline void say(const char* format, ...) {
    const size_t used = strlen(outcome->message);
    va_list list;
    va_start(list, format);
    vsnprintf(outcome->message + used, sizeof outcome->message - used, format, list);
    va_end(list);
}
inline const char* file_name(const char* path) {
    const char* slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
inline void say_place(const Fiber& fiber) {
    say("%s at %s:%u", fiber.kind->name, file_name(fiber.where.file_name()), unsigned(fiber.where.line()));
}
inline void begin_failure(const char* file, unsigned line) {
    const uint3 b = running->block->index, t = running->thread;
    say("%s, block (%u,%u,%u) thread (%u,%u,%u)", kernel->name, b.x, b.y, b.z, t.x, t.y, t.z);
    if (file) say(", %s:%u: ", file_name(file), line);
    else say(": ");
}
[[noreturn]] inline void end_launch() {
    outcome->failed = 1;
    switch_to(host);
    __builtin_unreachable();
}
template <class... T>
[[noreturn]] void fail(const Where& where, const char* format, T... values) {
    begin_failure(where.file_name(), where.line());
    say(format, values...);
    end_launch();
}
[[noreturn]] inline void fail_mixed(const Fiber& other, const char* who, unsigned number) {
    begin_failure(running->where.file_name(), running->where.line());
    say("%s, but %s %u stands in ", running->kind->name, who, number);
    say_place(other);
    end_launch();
}
inline bool same_place(const Fiber& a, const Fiber& b) { return a.kind == b.kind && a.where.line() == b.where.line(); }

// Nothing in the block can run: says who waits where, one clause a place.
[[noreturn]] inline void fail_stuck(const Block& block) {
    begin_failure(running->where.file_name(), running->where.line());
    say("no thread of the block can go on");
    std::vector<bool> said(block_threads);
    const auto is_alive = [&](const Fiber& f) { return block.warps[f.warp].alive >> f.lane & 1; };
    for (unsigned i = 0; i < block_threads; i++) {
        const Fiber& first = block.fibers[i];
        if (said[i] || !is_alive(first)) continue;
        unsigned count = 0;
        for (unsigned k = i; k < block_threads; k++)
            if (is_alive(block.fibers[k]) && same_place(block.fibers[k], first)) said[k] = true, count++;
        say("; %u threads, the first of them thread %u, stand in ", count, i);
        say_place(first);
    }
    end_launch();
}

// ---- Who runs next ----------------------------------------------------------------------------------------------

inline void set_runnable(Block& block, unsigned warp, unsigned lanes) {
    block.warps[warp].runnable = lanes;
    block.runnable_warps = (block.runnable_warps & ~(1u << warp)) | unsigned(lanes != 0) << warp;
}
inline Fiber& any_runnable(Block& block) {
    const unsigned warp = random_set_bit(block.runnable_warps);
    return block.fibers[warp * WARP + random_set_bit(block.warps[warp].runnable)];
}
inline Fiber& any_runnable() {
    const unsigned first = unsigned(random_bits() % launch.blocks_in_flight);
    for (unsigned i = 0; i < launch.blocks_in_flight; i++) {
        Block& block = slots[(first + i) % launch.blocks_in_flight];
        if (block.active && block.runnable_warps) return any_runnable(block);
    }
    return *running;
}
// The running fiber has stopped: its warp goes on if it can, else its block. No other block could free this one.
inline void run_another() {
    Block& block = *running->block;
    const unsigned warp = running->warp, lanes = block.warps[warp].runnable;
    if (lanes) switch_to(block.fibers[warp * WARP + random_set_bit(lanes)]);
    else if (block.runnable_warps) switch_to(any_runnable(block));
    else fail_stuck(block);
}
// Where others may see what this thread did, they sometimes get the processor.
inline void maybe_yield() {
    if ((random_bits() & 3) == 0) switch_to(any_runnable());
}
inline void progress() { fruitless_polls = 0; }
inline void poll(const Where& where) {
    if (++fruitless_polls > launch.patience)
        fail(where, "%u polls in a row, here and elsewhere, found nothing new: this spin never ends", launch.patience);
    switch_to(any_runnable());
}

// ---- Collectives ------------------------------------------------------------------------------------------------

// True if every lane of `mask` stands in the running lane's collective. Different ones with one mask are an error.
inline bool all_have_arrived(const Block& block, unsigned mask) {
    if (mask & ~block.warps[running->warp].waiting) return false;
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const Fiber& other = block.fibers[running->warp * WARP + std::countr_zero(rest)];
        if (other.mask != mask) return false;  // still with a smaller group; it may come here next
        if (!same_place(other, *running)) fail_mixed(other, "lane", other.lane);
    }
    return true;
}

// The running lane enters a warp collective and returns its result once all lanes of `mask` have entered.
inline uint64_t meet(const Collective& kind, unsigned mask, uint64_t value, unsigned source, const Where& where) {
    Fiber& self = *running;
    Block& block = *self.block;
    Warp& warp = block.warps[self.warp];
    const unsigned self_bit = 1u << self.lane;
    self.kind = &kind, self.mask = mask, self.value = value, self.source = source, self.where = where;
    if (!(mask & self_bit)) fail(where, "%s with mask %08x, which does not name lane %u", kind.name, mask, self.lane);
    if (const unsigned gone = mask & ~warp.alive)
        fail(where, "%s with mask %08x names lanes %08x, which have exited or never were", kind.name, mask, gone);
    warp.waiting |= self_bit;
    if (all_have_arrived(block, mask)) {
        kind.resolve(block.fibers + self.warp * WARP, mask);
        warp.waiting &= ~mask;
        set_runnable(block, self.warp, warp.runnable | mask);
    } else {
        set_runnable(block, self.warp, warp.runnable & ~self_bit);
        run_another();
    }
    return self.result;
}

// The running thread enters a block barrier; returns how many threads brought a true predicate.
inline unsigned meet_block(const Collective& kind, bool predicate, const Where& where) {
    Fiber& self = *running;
    Block& block = *self.block;
    self.kind = &kind, self.value = predicate, self.where = where;
    if (block.alive != block_threads)
        fail(where, "%s, but %u threads of the block have exited", kind.name, block_threads - block.alive);
    set_runnable(block, self.warp, block.warps[self.warp].runnable & ~(1u << self.lane));
    if (++block.at_barrier < block_threads) {
        run_another();
        return unsigned(self.result);
    }
    uint64_t count = 0;
    for (unsigned i = 0; i < block_threads; i++) {
        count += block.fibers[i].value;
        if (!same_place(block.fibers[i], self)) fail_mixed(block.fibers[i], "thread", i);
    }
    for (unsigned i = 0; i < block_threads; i++) block.fibers[i].result = count;
    for (unsigned w = 0; w * WARP < block_threads; w++) set_runnable(block, w, block.warps[w].alive);
    block.at_barrier = 0;
    maybe_yield();
    return unsigned(count);
}

// ---- Life of a thread and of a block ----------------------------------------------------------------------------

inline void fiber_main() {
    kernel->call(launch.arguments);
    Fiber& self = *running;
    Block& block = *self.block;
    Warp& warp = block.warps[self.warp];
    const unsigned self_bit = 1u << self.lane;
    const auto fail_missed = [](const Fiber& other) {
        fail(other.where, "has returned, but thread %u waits for it in %s", unsigned(&other - other.block->fibers),
             other.kind->name);
    };
    for (unsigned rest = warp.waiting; rest; rest &= rest - 1) {
        const Fiber& other = block.fibers[self.warp * WARP + std::countr_zero(rest)];
        if (other.mask & self_bit) fail_missed(other);
    }
    for (unsigned i = 0; block.at_barrier && i < block_threads; i++) {
        const Warp& its = block.warps[i / WARP];
        if ((its.alive & ~its.runnable & ~its.waiting) >> i % WARP & 1) fail_missed(block.fibers[i]);
    }
    warp.alive &= ~self_bit;
    set_runnable(block, self.warp, warp.runnable & ~self_bit);
    progress();
    if (--block.alive == 0) block.active = false, switch_to(host);
    run_another();
    __builtin_unreachable();
}

// Storage that ends where a page begins that traps; its start is aligned for anything.
inline char* guarded(size_t bytes) {
    constexpr size_t ALIGNMENT = 128;
    const size_t used = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, size = (used + PAGE - 1) / PAGE * PAGE;
    void* pages = mmap(nullptr, size + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(static_cast<char*>(pages) + size, PAGE, PROT_NONE)) abort();
    return static_cast<char*>(pages) + size - used;
}

inline void make_slot(Block& slot, size_t static_shared) {
    slot.fibers = new Fiber[MAX_THREADS]();
    slot.shared = guarded(static_shared);
    slot.dynamic_shared_end = guarded(MAX_DYNAMIC_SHARED) + MAX_DYNAMIC_SHARED;
    slot.stacks = launch.stacks + (slots.size() - 1) * MAX_THREADS * STACK_STRIDE;
    for (unsigned i = 0; i < MAX_THREADS; i++) mprotect(slot.stacks + i * STACK_STRIDE, PAGE, PROT_NONE);
}

inline void start_block(Block& block, unsigned number, size_t static_shared) {
    const unsigned *grid = launch.grid, *size = launch.block;
    block.index = {number % grid[0], number / grid[0] % grid[1], number / grid[0] / grid[1]};
    block.dynamic_shared = block.dynamic_shared_end - (launch.dynamic_shared + 15) / 16 * 16;
    memset(block.shared, 0xff, static_shared);  // NaN or -1: reading what nobody wrote shows
    memset(block.dynamic_shared, 0xff, launch.dynamic_shared);
    block.alive = block_threads, block.at_barrier = 0, block.active = true;
    for (unsigned i = 0; i < block_threads; i++) {
        Fiber& fiber = block.fibers[i];
        fiber.block = &block;
        fiber.thread = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
        fiber.warp = i / WARP, fiber.lane = i % WARP;
        prepare_context(fiber, block.stacks + i * STACK_STRIDE + PAGE, i);
    }
    block.runnable_warps = 0;
    for (unsigned w = 0; w * WARP < block_threads; w++) {
        const unsigned lanes = block_threads - w * WARP;
        block.warps[w] = {.alive = lanes >= WARP ? ~0u : (1u << lanes) - 1, .runnable = 0, .waiting = 0};
        set_runnable(block, w, block.warps[w].alive);
    }
}

inline void run_blocks(size_t static_shared) {
    const unsigned count = launch.grid[0] * launch.grid[1] * launch.grid[2];
    std::vector<unsigned> order(count);  // hardware promises none
    for (unsigned i = 0; i < count; i++) order[i] = i, std::swap(order[i], order[random_bits() % (i + 1)]);
    while (slots.size() < launch.blocks_in_flight) make_slot(slots.emplace_back(), static_shared);
    for (Block& slot : slots) slot.active = false;
    unsigned started = 0, ended = 0;
    while (ended < count && !outcome->failed) {
        for (unsigned i = 0; i < launch.blocks_in_flight && started < count; i++)
            if (!slots[i].active) start_block(slots[i], order[started++], static_shared);
        switch_to(any_runnable());  // comes back when a block has ended, or on failure
        ended++;
    }
}

}  // namespace cuda_on_cpu
