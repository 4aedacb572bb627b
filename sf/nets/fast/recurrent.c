// Recurrent layers through whole sequences, for `sf.nets.fast.native_recurrent`.
//
// Products with the inputs of a layer are made before, for all steps at once, and so are those for the gradients of its
// weights afterwards. Here is what a step needs of the one before it. T steps of B sequences; their state has one part
// of `size` numbers in a GRU, and two in an LSTM, of which the first one is the output. Where an episode begins with a
// step, the state before it is 0.

#include "vectors.h"

enum { GRU, LSTM };

static inline int64_t parts_of(int64_t kind) { return kind == GRU ? 1 : 2; }
static inline int64_t gates_of(int64_t kind) { return kind == GRU ? 3 : 4; }
static inline int64_t kept_of(int64_t kind) { return kind == GRU ? 4 : 5; }
static inline float sigmoid_of(float x) { return 1.0f / (1.0f + exponential(-x)); }

#define EACH _Pragma("GCC ivdep") for (int64_t j = 0; j < size; j++)

// ---- products with a matrix that all steps share -----------------------------------------------------------------

// B [depth, n] as panels; element (k, j) is b[k * b_row + j * b_column].
static void pack(int64_t depth, int64_t n, const float *b, int64_t b_row, int64_t b_column, float *panels) {
    for (int64_t j = 0; j < n; j += WIDTH)
        pack_columns(depth, n - j < WIDTH ? n - j : WIDTH, b + j * b_column, b_row, b_column, panels + j * depth);
}

// C [m, up(n)] = A [m, depth] B, with rows of A that are `row` apart.
static void multiply(int64_t m, int64_t n, int64_t depth, const float *a, int64_t row, const float *panels, float *c) {
    for (int64_t j = 0; j < n; j += WIDTH)
        for (int64_t i = 0; i < m; i += ROWS)
            blocks[m - i < ROWS ? m - i : ROWS](depth, a + i * row, row, 1, panels + j * depth, WIDTH,
                                                c + i * up(n) + j, up(n), 0);
}

// ---- one step of one sequence ------------------------------------------------------------------------------------

// x, from the inputs, and s, from the state before, are [gates]; the state after it goes where the one before is.
static void gru(int64_t size, const float *x, const float *s, const float *bias, float *kept, float *state) {
    float *reset = kept, *update = kept + size, *candidate = kept + 2 * size, *past = kept + 3 * size;
    EACH {
        reset[j] = sigmoid_of(x[j] + s[j] + bias[j]);
        update[j] = sigmoid_of(x[size + j] + s[size + j] + bias[size + j]);
        past[j] = s[2 * size + j] + bias[2 * size + j];
        candidate[j] = tanh_of(x[2 * size + j] + reset[j] * past[j]);
        state[j] = candidate[j] + update[j] * (state[j] - candidate[j]);
    }
}

static void lstm(int64_t size, const float *x, const float *s, const float *bias, float *kept, float *state) {
    float *in = kept, *forget = kept + size, *cell = kept + 2 * size, *out = kept + 3 * size, *told = kept + 4 * size;
    float *content = state + size;
    EACH {
        in[j] = sigmoid_of(x[j] + s[j] + bias[j]);
        forget[j] = sigmoid_of(x[size + j] + s[size + j] + bias[size + j]);
        cell[j] = tanh_of(x[2 * size + j] + s[2 * size + j] + bias[2 * size + j]);
        out[j] = sigmoid_of(x[3 * size + j] + s[3 * size + j] + bias[3 * size + j]);
        content[j] = forget[j] * content[j] + in[j] * cell[j];
        told[j] = tanh_of(content[j]);
        state[j] = out[j] * told[j];
    }
}

// From the derivatives d_state of the state after a step: those of x and of s, and the part of those of the state before
// it that does not go through s.
static void through_gru(int64_t size, const float *kept, const float *before, float *d_state, float *d_x, float *d_s) {
    const float *reset = kept, *update = kept + size, *candidate = kept + 2 * size, *past = kept + 3 * size;
    EACH {
        float d_candidate = d_state[j] * (1.0f - update[j]) * (1.0f - candidate[j] * candidate[j]);
        float d_update = d_state[j] * (before[j] - candidate[j]) * update[j] * (1.0f - update[j]);
        float d_reset = d_candidate * past[j] * reset[j] * (1.0f - reset[j]);
        d_x[j] = d_s[j] = d_reset;
        d_x[size + j] = d_s[size + j] = d_update;
        d_x[2 * size + j] = d_candidate;
        d_s[2 * size + j] = d_candidate * reset[j];
        d_state[j] *= update[j];
    }
}

static void through_lstm(int64_t size, const float *kept, const float *before, float *d_state, float *d_s) {
    const float *in = kept, *forget = kept + size, *cell = kept + 2 * size, *out = kept + 3 * size;
    const float *told = kept + 4 * size, *content = before + size;
    float *d_content = d_state + size;
    EACH {
        float d = d_content[j] + d_state[j] * out[j] * (1.0f - told[j] * told[j]);
        d_s[j] = d * cell[j] * in[j] * (1.0f - in[j]);
        d_s[size + j] = d * content[j] * forget[j] * (1.0f - forget[j]);
        d_s[2 * size + j] = d * in[j] * (1.0f - cell[j] * cell[j]);
        d_s[3 * size + j] = d_state[j] * told[j] * out[j] * (1.0f - out[j]);
        d_content[j] = d * forget[j];
        d_state[j] = 0.0f;
    }
}

// ---- sequences ---------------------------------------------------------------------------------------------------

// Numbers of scratch memory for B sequences.
int64_t sf_sequence_scratch(int64_t kind, int64_t num_sequences, int64_t size) {
    int64_t gates = gates_of(kind) * size;
    return (gates + num_sequences) * up(size) + (size + num_sequences) * up(gates);
}

// x [T, B, gates]: products with the inputs, with their bias. weight [gates, size] and bias [gates] are those of the
// state. resets [T, B]. state [B, parts] goes from that before the first step to that after the last one.
// Out: states [T, B, parts] before each step, kept [T, B, ...] for the way back, and outputs [T, B, size].
void sf_sequence(int64_t kind, int64_t num_steps, int64_t num_sequences, int64_t size, const float *x,
                 const float *weight, const float *bias, const uint8_t *resets, float *state, float *states,
                 float *kept, float *outputs, float *memory) {
    int64_t parts = parts_of(kind) * size, gates = gates_of(kind) * size, keeps = kept_of(kind) * size;
    float *panels = memory, *s = memory + size * up(gates);
    pack(size, gates, weight, 1, size, panels);
    for (int64_t t = 0; t < num_steps; t++) {
        for (int64_t b = 0; b < num_sequences; b++)
            if (resets[t * num_sequences + b]) memset(state + b * parts, 0, sizeof(float) * parts);
        memcpy(states, state, sizeof(float) * num_sequences * parts);
        states += num_sequences * parts;
        multiply(num_sequences, gates, size, state, parts, panels, s);
        for (int64_t b = 0; b < num_sequences; b++, x += gates, kept += keeps, outputs += size) {
            float *own = state + b * parts;
            (kind == GRU ? gru : lstm)(size, x, s + b * up(gates), bias, kept, own);
            memcpy(outputs, own, sizeof(float) * size);
        }
    }
}

// d_state [B, parts] goes from the derivatives of the state after the last step to those of the one before the first.
// Out: d_x and d_s [T, B, gates], derivatives of the products with inputs and with states; an LSTM has but one of them.
void sf_through_sequence(int64_t kind, int64_t num_steps, int64_t num_sequences, int64_t size, const float *weight,
                         const uint8_t *resets, const float *states, const float *kept, const float *d_outputs,
                         float *d_state, float *d_x, float *d_s, float *memory) {
    int64_t parts = parts_of(kind) * size, gates = gates_of(kind) * size, keeps = kept_of(kind) * size;
    float *panels = memory, *d_before = memory + gates * up(size);
    pack(gates, size, weight, size, 1, panels);
    for (int64_t t = num_steps - 1; t >= 0; t--) {
        for (int64_t b = 0; b < num_sequences; b++) {
            int64_t row = t * num_sequences + b;
            float *own = d_state + b * parts;
            EACH own[j] += d_outputs[row * size + j];
            if (kind == GRU)
                through_gru(size, kept + row * keeps, states + row * parts, own, d_x + row * gates, d_s + row * gates);
            else
                through_lstm(size, kept + row * keeps, states + row * parts, own, d_s + row * gates);
        }
        multiply(num_sequences, size, gates, d_s + t * num_sequences * gates, gates, panels, d_before);
        for (int64_t b = 0; b < num_sequences; b++) {
            float *own = d_state + b * parts, *through = d_before + b * up(size);
            EACH own[j] += through[j];
            if (resets[t * num_sequences + b]) memset(own, 0, sizeof(float) * parts);
        }
    }
}
