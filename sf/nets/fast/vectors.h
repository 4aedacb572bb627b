// Vectors, blocks of products of matrices and functions of numbers, for the files in C beside this one.
//
// The compiler gets -march=native, so a vector has as many numbers as the processor takes at once. A product of matrices
// goes block by block, each of which stays in registers.

#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define ROWS 8
#elif defined(__AVX2__)
#define LANES 8
#define ROWS 6
#else
#define LANES 4
#define ROWS 6
#endif
#define WIDTH (2 * LANES)  // columns of a block: two vectors

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef float Loaded __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline Vector load(const float *p) { return *(const Loaded *)p; }
static inline void store(float *p, Vector v) { *(Loaded *)p = v; }
static inline Vector all(float x) { return x - (Vector){}; }
static inline int64_t up(int64_t n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }

// ---- blocks of products ------------------------------------------------------------------------------------------

// rows x WIDTH of C = A B (added to what is there where `adds`); a is at row 0, its strides are those of A.
#define BLOCK(M)                                                                                                       \
    static void block_##M(int64_t depth, const float *a, int64_t row, int64_t column, const float *b, int64_t ldb,     \
                          float *c, int64_t ldc, int adds) {                                                           \
        Vector left[M], right[M];                                                                                      \
        _Pragma("GCC unroll 8") for (int r = 0; r < M; r++) {                                                          \
            left[r] = adds ? load(c + r * ldc) : all(0.0f);                                                            \
            right[r] = adds ? load(c + r * ldc + LANES) : all(0.0f);                                                   \
        }                                                                                                              \
        for (int64_t k = 0; k < depth; k++) {                                                                          \
            Vector b_left = load(b + k * ldb), b_right = load(b + k * ldb + LANES);                                    \
            _Pragma("GCC unroll 8") for (int r = 0; r < M; r++) {                                                      \
                Vector x = all(a[r * row + k * column]);                                                               \
                left[r] += x * b_left;                                                                                 \
                right[r] += x * b_right;                                                                               \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 8") for (int r = 0; r < M; r++) {                                                          \
            store(c + r * ldc, left[r]);                                                                               \
            store(c + r * ldc + LANES, right[r]);                                                                      \
        }                                                                                                              \
    }

BLOCK(1) BLOCK(2) BLOCK(3) BLOCK(4) BLOCK(5) BLOCK(6) BLOCK(7) BLOCK(8)

typedef void Block(int64_t, const float *, int64_t, int64_t, const float *, int64_t, float *, int64_t, int);
static Block *const blocks[] = {0, block_1, block_2, block_3, block_4, block_5, block_6, block_7, block_8};

// A panel of B, WIDTH columns from `b` on, `columns` of which there are. The blocks then read it in the order in which
// it lies. With rows of 1 KB that are 1 KB apart most loads would miss the first cache.
static void pack_columns(int64_t depth, int64_t columns, const float *b, int64_t b_row, int64_t b_column, float *to) {
    if (columns == WIDTH && b_column == 1) {
        for (int64_t k = 0; k < depth; k++, b += b_row, to += WIDTH) {
            store(to, load(b));
            store(to + LANES, load(b + LANES));
        }
        return;
    }
    for (int64_t k = 0; k < depth; k += LANES)  // a few rows at a time, which stay in the cache
        for (int64_t s = 0; s < WIDTH; s++)
            for (int64_t q = k; q < depth && q < k + LANES; q++)
                to[q * WIDTH + s] = s < columns ? b[q * b_row + s * b_column] : 0.0f;
}

// ---- functions of single numbers ---------------------------------------------------------------------------------

// Without branches, so that the compiler makes loops over vectors of them. What is not a number stays that.

// e^x to 1e-7 of itself: 2^i times a polynomial of the rest, which lies in [-0.5, 0.5].
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float scaled = x * 1.44269504f, whole = (scaled + 12582912.0f) - 12582912.0f, rest = scaled - whole;
    float p = 1.54035304e-4f;
    p = p * rest + 1.33335581e-3f;
    p = p * rest + 9.61812911e-3f;
    p = p * rest + 5.55041087e-2f;
    p = p * rest + 2.40226507e-1f;
    p = p * rest + 6.93147182e-1f;
    p = p * rest + 1.0f;
    union {
        int32_t bits;
        float number;
    } power = {((int32_t)whole + 127) << 23};
    return p * power.number;
}

static inline float tanh_of(float x) { return 1.0f - 2.0f / (exponential(x + x) + 1.0f); }
static inline float relu_of(float x) { return x < 0.0f ? 0.0f : x; }
static inline float elu_of(float x) {
    float below = exponential(x) - 1.0f;
    return x > 0.0f ? x : below;
}
