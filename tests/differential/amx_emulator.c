/* Runs the instructions of Intel AMX on x86-64 processors that lack them: each one traps, and the handler computes it.
 *
 * Encodings and meanings: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, and volume 1 chapter 18.
 * bfloat16 sums here are float32 multiplications and additions, each rounded; the processor rounds in another order.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
} config_t;

static __thread config_t config;
static __thread uint8_t tile[8][16][64];
static long executed, configured;
static struct sigaction before;

/* Return how many tile instructions have been computed, in all threads. */
long amx_executed(void) { return executed; }

/* Return how many times registers were given their shapes, in all threads. */
long amx_configured(void) { return configured; }

static const int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                              REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static float of_bfloat16(const uint8_t *at) {
    uint16_t low;
    memcpy(&low, at, 2);
    uint32_t bits = (uint32_t)low << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Return 0 where the shapes of three tiles do not fit, for which the processor raises #UD. */
static int multiply(int opcode, int prefix, int c, int a, int b) {
    if (config.colsb[a] / 4 != config.rows[b] || config.rows[c] != config.rows[a] || config.colsb[c] != config.colsb[b])
        return 0;
    for (int m = 0; m < config.rows[c]; m++)
        for (int k = 0; k < config.rows[b]; k++)
            for (int n = 0; n < config.colsb[c] / 4; n++) {
                const uint8_t *x = &tile[a][m][4 * k], *y = &tile[b][k][4 * n];
                uint8_t *sum = &tile[c][m][4 * n];
                if (opcode == 0x5c) {
                    float total;
                    memcpy(&total, sum, 4);
                    total += of_bfloat16(x) * of_bfloat16(y);
                    total += of_bfloat16(x + 2) * of_bfloat16(y + 2);
                    memcpy(sum, &total, 4);
                    continue;
                }
                int32_t total;
                memcpy(&total, sum, 4);
                for (int q = 0; q < 4; q++) {
                    int left = prefix == 0 || prefix == 1 ? x[q] : (int8_t)x[q];  /* none uu, 66 us, F3 su, F2 ss */
                    int right = prefix == 0 || prefix == 2 ? y[q] : (int8_t)y[q];
                    total += left * right;
                }
                memcpy(sum, &total, 4);
            }
    return 1;
}

static int compute(ucontext_t *context) {
    greg_t *g = context->uc_mcontext.gregs;
    const uint8_t *p = (const uint8_t *)g[REG_RIP];
    if (p[0] != 0xc4 || (p[1] & 0x1f) != 2) return 0;
    int opcode = p[3], prefix = p[2] & 3, other = ~(p[2] >> 3) & 15, modrm = p[4];
    int mod = modrm >> 6, reg = modrm >> 3 & 7, rm = modrm & 7, high_base = !(p[1] & 0x20), high_index = !(p[1] & 0x40);
    const uint8_t *next = p + 5;
    if (mod == 3) {
        if (opcode == 0x49 && prefix == 0 && modrm == 0xc0) { /* tilerelease */
            memset(&config, 0, sizeof config);
        } else if (opcode == 0x49 && prefix == 3) { /* tilezero */
            if (!config.rows[reg]) return 0;
            memset(tile[reg], 0, sizeof tile[reg]);
        } else if (opcode == 0x5e || (opcode == 0x5c && prefix == 2)) {
            if (!multiply(opcode, prefix, reg, rm, other & 7)) return 0;
        } else {
            return 0;
        }
    } else {
        int64_t address, step = 0;
        if (rm == 4) {
            int sib = *next++, base = (sib & 7) | high_base << 3, index = (sib >> 3 & 7) | high_index << 3;
            address = (sib & 7) == 5 && mod == 0 ? 0 : g[order[base]];
            if (index != 4) step = (int64_t)((uint64_t)g[order[index]] << (sib >> 6));
            if ((sib & 7) == 5 && mod == 0) mod = 2;
        } else if (mod == 0 && rm == 5) {
            address = 0; /* relative to the next instruction, added below */
        } else {
            address = g[order[rm | high_base << 3]];
        }
        if (mod == 1) {
            address += (int8_t)*next++;
        } else if (mod == 2 || (mod == 0 && rm == 5)) {
            int32_t displacement;
            memcpy(&displacement, next, 4);
            next += 4;
            address += displacement;
            if (mod == 0) address += (int64_t)next;
        }
        if (opcode == 0x49 && prefix == 0) { /* ldtilecfg */
            memcpy(&config, (void *)address, 64);
            if (config.palette != 1) return 0;
            for (int t = 0; t < 8; t++)
                if (config.rows[t] > 16 || config.colsb[t] > 64 || config.colsb[t] % 4) return 0;
            memset(tile, 0, sizeof tile);
            __atomic_add_fetch(&configured, 1, __ATOMIC_RELAXED);
        } else if (opcode == 0x4b && (prefix == 3 || prefix == 1)) { /* tileloadd, tileloaddt1 */
            if (!config.rows[reg]) return 0;
            memset(tile[reg], 0, sizeof tile[reg]);
            for (int row = 0; row < config.rows[reg]; row++)
                memcpy(tile[reg][row], (void *)(address + row * step), config.colsb[reg]);
        } else if (opcode == 0x4b && prefix == 2) { /* tilestored */
            if (!config.rows[reg]) return 0;
            for (int row = 0; row < config.rows[reg]; row++)
                memcpy((void *)(address + row * step), tile[reg][row], config.colsb[reg]);
        } else {
            return 0;
        }
    }
    g[REG_RIP] = (greg_t)next;
    __atomic_add_fetch(&executed, 1, __ATOMIC_RELAXED);
    return 1;
}

static void on_illegal(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    if (!compute(context)) sigaction(SIGILL, &before, 0); /* the instruction runs again and meets who was there before */
}

/* Compute tile instructions from now on. */
int amx_install(void) {
    struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO | SA_NODEFER};
    return sigaction(SIGILL, &action, &before);
}

/* Put back the earlier handler of illegal instructions. */
int amx_remove(void) { return sigaction(SIGILL, &before, 0); }
