// Small actor-critics in one call forwards and one backwards, for `sf.nets.fast.native`
// and `sf.nets.fast.native_acting`.
//
// Rows [n] of a minibatch go through one or two towers of linear layers with a nonlinearity, a policy head and a value
// head. Numbers are float32, matrices lie row after row. A policy keeps all parameters in one vector, and their
// gradients in another one of the same order; offsets point into both.

#include "vectors.h"

#define NARROW 4  // results of a layer that are dot products
#define MOST_LAYERS 8
#define PANELS_FROM 96  // sizes of a product from which its matrices are copied in the order of use

enum { TANH, RELU, ELU };
enum { CATEGORICAL, GAUSSIAN, ADAPTIVE_GAUSSIAN };

// The same fields in the same order as `sf.nets.fast.small_networks.Network`.
typedef struct {
    int64_t num_inputs, num_layers, num_params, num_towers, activation, distribution;
    int64_t sizes[MOST_LAYERS];
    int64_t weights[2][MOST_LAYERS], biases[2][MOST_LAYERS];  // offsets, by tower
    int64_t policy_weight, policy_bias, value_weight, value_bias, log_std;
    float *parameters, *gradients;
    const float *mean, *std;  // of the observations; null where they come prepared
    float clip, initial_log_std, lowest_log_std, highest_log_std;
    const float *mean_rest;               // of observations in float64: what float32 leaves over of the mean, or null
    const float *value_mean, *value_std;  // of returns; null where values are those of the environment
    int64_t is_wide;                      // observations in float64, for acting alone
} Network;

// ---- products ----------------------------------------------------------------------------------------------------

// A in panels of ROWS rows, for the same reason as those of B.
static void pack_rows(int64_t m, int64_t depth, const float *a, int64_t row, int64_t column, float *to) {
    for (int64_t i = 0; i < m; i += ROWS) {
        int64_t rows = m - i < ROWS ? m - i : ROWS;
        for (int64_t k = 0; k < depth; k++)
            for (int64_t r = 0; r < rows; r++) *to++ = a[(i + r) * row + k * column];
    }
}

// C [m, n] = A [m, depth] B [depth, n], or C += A B. Element (i, k) of A is a[i * row + k * column], that of B
// b[k * b_row + j * b_column]. `packed` has room for depth * up(n) numbers, and for depth * (m + WIDTH).
static void product(int64_t m, int64_t n, int64_t depth, const float *a, int64_t row, int64_t column, const float *b,
                    int64_t b_row, int64_t b_column, float *c, int adds, float *packed) {
    int64_t ldb = b_row, by_panels = m >= PANELS_FROM && n >= PANELS_FROM && depth >= PANELS_FROM;
    int64_t turns = by_panels && column != 1;
    if (turns) pack_rows(m, depth, a, row, column, packed + depth * WIDTH);
    if (by_panels) {
        ldb = WIDTH;
    } else if (b_column != 1 || n % WIDTH) {
        ldb = up(n);
        for (int64_t k = 0; k < depth; k++) {
            float *to = packed + k * ldb;
            for (int64_t j = 0; j < n; j++) to[j] = b[k * b_row + j * b_column];
            for (int64_t j = n; j < ldb; j++) to[j] = 0.0f;
        }
        b = packed;
    }
    for (int64_t j = 0; j < n; j += WIDTH) {
        int64_t columns = n - j < WIDTH ? n - j : WIDTH;
        const float *panel = by_panels ? packed : b + j;
        if (by_panels) pack_columns(depth, columns, b + j * b_column, b_row, b_column, packed);
        for (int64_t i = 0; i < m; i += ROWS) {
            int64_t rows = m - i < ROWS ? m - i : ROWS;
            const float *from = turns ? packed + depth * (WIDTH + i) : a + i * row;
            int64_t from_row = turns ? 1 : row, from_column = turns ? rows : column;
            if (columns == WIDTH) {
                blocks[rows](depth, from, from_row, from_column, panel, ldb, c + i * n + j, n, adds);
                continue;
            }
            float part[ROWS * WIDTH];
            blocks[rows](depth, from, from_row, from_column, panel, ldb, part, WIDTH, 0);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t s = 0; s < columns; s++) {
                    float *to = c + (i + r) * n + j + s;
                    *to = adds ? *to + part[r * WIDTH + s] : part[r * WIDTH + s];
                }
        }
    }
}

// ---- activations -------------------------------------------------------------------------------------------------

// gradient * f'(x), where y = f(x)
static inline float through_tanh(float gradient, float y) { return gradient * (1.0f - y * y); }
static inline float through_relu(float gradient, float y) { return y > 0.0f ? gradient : 0.0f; }
static inline float through_elu(float gradient, float y) { return y > 0.0f ? gradient : gradient * (y + 1.0f); }

#define ROWS_OF(function)                                                                                              \
    for (int64_t i = 0; i < n; i++, y += size)                                                                         \
        for (int64_t j = 0; j < size; j++) y[j] = function(y[j] + bias[j]);
#define ALL_OF(function)                                                                                               \
    for (int64_t j = 0; j < n * size; j++) gradient[j] = function(gradient[j], y[j]);

// y [n, size] = f(y + bias)
static void activate_rows(float *restrict y, const float *restrict bias, int64_t n, int64_t size, int64_t activation) {
    if (activation == TANH) {
        ROWS_OF(tanh_of)
    } else if (activation == RELU) {
        ROWS_OF(relu_of)
    } else {
        ROWS_OF(elu_of)
    }
}

// gradient [n, size] of y = f(x) becomes that of x
static void derive_rows(float *restrict gradient, const float *restrict y, int64_t n, int64_t size,
                        int64_t activation) {
    if (activation == TANH) {
        ALL_OF(through_tanh)
    } else if (activation == RELU) {
        ALL_OF(through_relu)
    } else {
        ALL_OF(through_elu)
    }
}

// to [size] += sum of the rows
static void add_rows(float *restrict to, const float *restrict rows, int64_t n, int64_t size) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < size; j++) to[j] += rows[i * size + j];
}

// ---- layers ------------------------------------------------------------------------------------------------------

static inline float dot(int64_t n, const float *a, const float *b) {
    Vector sums = {};
    float sum = 0.0f;
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES) sums += load(a + k) * load(b + k);
    for (; k < n; k++) sum += a[k] * b[k];
    for (int64_t lane = 0; lane < LANES; lane++) sum += sums[lane];
    return sum;
}

// y [n, out] = x [n, in] W^T, with W [out, in]
static void linear(int64_t n, int64_t in, int64_t out, const float *x, const float *weight, float *y, float *packed) {
    if (out > NARROW) {
        product(n, out, in, x, in, 1, weight, 1, in, y, 0, packed);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < out; j++) y[i * out + j] = dot(in, x + i * in, weight + j * in);
}

// Adds the gradients of a layer from those of its results; few inputs lie along the rows of the product.
static void add_gradients(int64_t n, int64_t in, int64_t out, const float *x, const float *d_y, float *d_weight,
                          float *d_bias, float *packed) {
    add_rows(d_bias, d_y, n, out);
    if (in >= WIDTH || in >= out) {
        product(out, in, n, d_y, 1, out, x, in, 1, d_weight, 1, packed);
        return;
    }
    float *turned = packed + n * up(out);
    product(in, out, n, x, 1, in, d_y, out, 1, turned, 0, packed);
    for (int64_t i = 0; i < in; i++)
        for (int64_t j = 0; j < out; j++) d_weight[j * in + i] += turned[i * out + j];
}

// ---- the network -------------------------------------------------------------------------------------------------

static int64_t widest(const Network *net) {
    int64_t most = net->num_inputs > net->num_params ? net->num_inputs : net->num_params;
    for (int64_t i = 0; i < net->num_layers; i++) most = net->sizes[i] > most ? net->sizes[i] : most;
    return most;
}

static int64_t of_layers(const Network *net) {
    int64_t sum = 0;
    for (int64_t i = 0; i < net->num_layers; i++) sum += net->sizes[i];
    return sum;
}

// Room for `packed` in the products of n rows. Two of a layer's numbers of inputs, outputs and rows are in each of them.
static int64_t of_products(const Network *net, int64_t n) {
    int64_t most = 0, in = net->num_inputs;
    for (int64_t i = 0; i <= net->num_layers; i++) {
        int64_t out = i < net->num_layers ? net->sizes[i] : net->num_params, sides[] = {in, out, n};
        int64_t turned = in < WIDTH ? in * out : 0;
        for (int64_t a = 0; a < 3; a++)
            for (int64_t b = 0; b < 3; b++) {
                int64_t room = sides[a] * (up(sides[b]) + WIDTH) + turned;
                if (a != b && room > most) most = room;
            }
        in = out;
    }
    return most;
}

// Parts of the scratch memory, which keeps what `forward` computed until `backward`.
typedef struct {
    float *inputs, *towers[2], *kept, *gradient, *next, *packed;
} Scratch;

static Scratch parts(const Network *net, int64_t n, float *memory) {
    Scratch s;
    int64_t wide = widest(net), layers = of_layers(net);
    s.inputs = memory, memory += n * net->num_inputs;
    for (int64_t t = 0; t < 2; t++) s.towers[t] = memory, memory += t < net->num_towers ? n * layers : 0;
    s.kept = memory, memory += 2 * n * net->num_params;
    s.gradient = memory, memory += n * wide;
    s.next = memory, memory += n * wide;
    s.packed = memory;
    return s;
}

// Numbers of scratch memory for n rows.
int64_t sf_scratch(const Network *net, int64_t n) {
    return n * (net->num_inputs + net->num_towers * of_layers(net) + 2 * net->num_params + 2 * widest(net)) +
           of_products(net, n);
}

static float *features(const Network *net, const Scratch *s, int64_t tower, int64_t n) {
    float *last = s->towers[tower < net->num_towers ? tower : 0];
    return last + n * (of_layers(net) - net->sizes[net->num_layers - 1]);
}

static void prepare(const Network *net, int64_t n, const float *raw, float *inputs) {
    int64_t size = net->num_inputs;
    if (!net->mean) {
        memcpy(inputs, raw, sizeof(float) * n * size);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < size; j++) {
            float x = (raw[i * size + j] - net->mean[j]) / net->std[j];
            x = x < -net->clip ? -net->clip : x;
            inputs[i * size + j] = x > net->clip ? net->clip : x;
        }
}

static void evaluate_categorical(const Network *net, int64_t n, const float *params, const int64_t *actions,
                                 float *kept, float *log_probs, float *entropies) {
    int64_t size = net->num_params;
    for (int64_t i = 0; i < n; i++, params += size) {
        float *logs = kept + i * size, *probs = logs + n * size;
        float most = params[0], sum = 0.0f, entropy = 0.0f;
        for (int64_t j = 1; j < size; j++) most = params[j] > most ? params[j] : most;
        for (int64_t j = 0; j < size; j++) sum += expf(params[j] - most);
        float shift = most + logf(sum);
        for (int64_t j = 0; j < size; j++) {
            logs[j] = params[j] - shift;
            probs[j] = expf(logs[j]);
            entropy -= probs[j] * logs[j];
        }
        log_probs[i] = logs[actions[i]];
        entropies[i] = entropy;
    }
}

static void back_through_categorical(const Network *net, int64_t n, const int64_t *actions, const float *kept,
                                     const float *entropies, const float *d_log_probs, const float *d_entropies,
                                     float *d_params) {
    int64_t size = net->num_params;
    for (int64_t i = 0; i < n; i++, d_params += size) {
        const float *logs = kept + i * size, *probs = logs + n * size;
        for (int64_t j = 0; j < size; j++)
            d_params[j] = -probs[j] * ((logs[j] + entropies[i]) * d_entropies[i] + d_log_probs[i]);
        d_params[actions[i]] += d_log_probs[i];
    }
}

#define HALF_LOG_TWO_PI 0.918938533f

static float log_std_of(const Network *net, const float *params, int64_t numbers, int64_t j, int *is_inside) {
    *is_inside = 1;
    if (net->distribution == GAUSSIAN) return net->parameters[net->log_std + j];
    float x = params[numbers + j] + net->initial_log_std;
    *is_inside = !(x < net->lowest_log_std || x > net->highest_log_std);
    return x < net->lowest_log_std ? net->lowest_log_std : x > net->highest_log_std ? net->highest_log_std : x;
}

static int64_t numbers_of(const Network *net) {
    return net->distribution == GAUSSIAN ? net->num_params : net->num_params / 2;
}

static void evaluate_gaussian(const Network *net, int64_t n, const float *params, const float *actions, float *kept,
                              float *log_probs, float *entropies) {
    int64_t size = numbers_of(net);
    int is_inside;
    for (int64_t i = 0; i < n; i++, params += net->num_params) {
        float *distances = kept + i * size, *inverses = distances + n * size, density = 0.0f, spread = 0.0f;
        for (int64_t j = 0; j < size; j++) {
            float log_std = log_std_of(net, params, size, j, &is_inside);
            inverses[j] = expf(-log_std);
            distances[j] = (actions[i * size + j] - params[j]) * inverses[j];
            density += -0.5f * distances[j] * distances[j] - log_std;
            spread += log_std;
        }
        log_probs[i] = density - size * HALF_LOG_TWO_PI;
        entropies[i] = spread + size * (0.5f + HALF_LOG_TWO_PI);
    }
}

static void back_through_gaussian(const Network *net, int64_t n, const float *params, const float *kept,
                                  const float *d_log_probs, const float *d_entropies, float *d_params) {
    int64_t size = numbers_of(net);
    int is_inside;
    for (int64_t i = 0; i < n; i++, d_params += net->num_params, params += net->num_params) {
        const float *distances = kept + i * size, *inverses = distances + n * size;
        for (int64_t j = 0; j < size; j++) {
            float along = distances[j] * d_log_probs[i];
            float d_log_std = along * distances[j] - d_log_probs[i] + d_entropies[i];
            d_params[j] = along * inverses[j];
            if (net->distribution == GAUSSIAN) {
                net->gradients[net->log_std + j] += d_log_std;
            } else {
                log_std_of(net, params, size, j, &is_inside);
                d_params[size + j] = is_inside ? d_log_std : 0.0f;
            }
        }
    }
}

// From prepared inputs in the scratch memory to parameters of the distribution [n, num_params] and values [n].
static void forward(const Network *net, int64_t n, float *params, float *values, float *memory) {
    Scratch s = parts(net, n, memory);
    const float *p = net->parameters;
    for (int64_t t = 0; t < net->num_towers; t++) {
        const float *x = s.inputs;
        float *y = s.towers[t];
        int64_t in = net->num_inputs;
        for (int64_t i = 0; i < net->num_layers; i++) {
            int64_t out = net->sizes[i];
            linear(n, in, out, x, p + net->weights[t][i], y, s.packed);
            activate_rows(y, p + net->biases[t][i], n, out, net->activation);
            x = y, in = out, y += n * out;
        }
    }
    int64_t in = net->sizes[net->num_layers - 1], out = net->num_params;
    linear(n, in, out, features(net, &s, 0, n), p + net->policy_weight, params, s.packed);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < out; j++) params[i * out + j] += p[net->policy_bias + j];
    linear(n, in, 1, features(net, &s, 1, n), p + net->value_weight, values, s.packed);
    for (int64_t i = 0; i < n; i++) values[i] += p[net->value_bias];
}

// The same from `raw` observations [n, num_inputs].
void sf_outputs(const Network *net, int64_t n, const float *raw, float *params, float *values, float *memory) {
    prepare(net, n, raw, parts(net, n, memory).inputs);
    forward(net, n, params, values, memory);
}

// Adds the gradients of all parameters, from the derivatives of a loss for what `sf_outputs` wrote with this memory.
// Where values are `apart`, those of the value head end at the features that it shares with the policy head.
void sf_through_outputs(const Network *net, int64_t n, const float *d_params, const float *d_values, int64_t apart,
                        float *memory) {
    Scratch s = parts(net, n, memory);
    const float *p = net->parameters;
    float *g = net->gradients, *gradient = s.gradient, *next = s.next;
    int64_t last = net->num_layers - 1, size = net->sizes[last], out = net->num_params;
    add_gradients(n, size, out, features(net, &s, 0, n), d_params, g + net->policy_weight, g + net->policy_bias,
                  s.packed);
    add_gradients(n, size, 1, features(net, &s, 1, n), d_values, g + net->value_weight, g + net->value_bias, s.packed);
    product(n, size, out, d_params, out, 1, p + net->policy_weight, size, 1, gradient, 0, s.packed);
    for (int64_t t = 0; t < net->num_towers; t++) {
        if (t == net->num_towers - 1 && !(apart && t == 0))
            product(n, size, 1, d_values, 1, 1, p + net->value_weight, size, 1, gradient, t == 0, s.packed);
        for (int64_t i = last; i >= 0; i--) {
            int64_t in = i ? net->sizes[i - 1] : net->num_inputs, width = net->sizes[i];
            float *y = s.towers[t];
            for (int64_t k = 0; k < i; k++) y += n * net->sizes[k];
            derive_rows(gradient, y, n, width, net->activation);
            add_gradients(n, in, width, i ? y - n * in : s.inputs, gradient, g + net->weights[t][i],
                          g + net->biases[t][i], s.packed);
            if (!i) break;
            product(n, in, width, gradient, width, 1, p + net->weights[t][i], in, 1, next, 0, s.packed);
            float *swap = gradient;
            gradient = next, next = swap;
        }
    }
}

// Evaluates `actions` of n rows, [n] int64 or [n, numbers]; see `sf_outputs`.
// Writes log-probabilities [n] and entropies [n] as well.
void sf_forward(const Network *net, int64_t n, const float *raw, const void *actions, float *log_probs,
                float *entropies, float *values, float *params, float *memory) {
    Scratch s = parts(net, n, memory);
    sf_outputs(net, n, raw, params, values, memory);
    if (net->distribution == CATEGORICAL)
        evaluate_categorical(net, n, params, actions, s.kept, log_probs, entropies);
    else
        evaluate_gaussian(net, n, params, actions, s.kept, log_probs, entropies);
}

// Adds the gradients of all parameters, from the derivatives [n] of a loss for what `sf_forward` wrote with this memory.
void sf_backward(const Network *net, int64_t n, const void *actions, const float *entropies, const float *params,
                 const float *d_log_probs, const float *d_entropies, const float *d_values, float *memory) {
    Scratch s = parts(net, n, memory);
    if (net->distribution == CATEGORICAL)
        back_through_categorical(net, n, actions, s.kept, entropies, d_log_probs, d_entropies, s.next);
    else
        back_through_gaussian(net, n, params, s.kept, d_log_probs, d_entropies, s.next);
    sf_through_outputs(net, n, s.next, d_values, 0, memory);
}

// ---- networks of values ------------------------------------------------------------------------------------------

// Each tower of a `Network` is one of them here, with a head of `num_params` results, whose offsets follow those of the
// layers. Inputs come prepared.

// Numbers of scratch memory for n rows; what `sf_values` computed stays there until `sf_through_values`.
int64_t sf_values_scratch(const Network *net, int64_t n) {
    int64_t layers = of_layers(net), kept = net->num_inputs + layers + net->num_params;
    return n * (net->num_towers * layers + 2 * widest(net) + kept + 1) + of_products(net, n);
}

// values [towers, n, num_params] of inputs [n, num_inputs].
void sf_values(const Network *net, int64_t n, const float *inputs, float *values, float *memory) {
    int64_t last = net->num_layers, out = net->num_params;
    float *y = memory, *packed = memory + n * net->num_towers * of_layers(net);
    for (int64_t t = 0; t < net->num_towers; t++, values += n * out) {
        const float *x = inputs;
        int64_t in = net->num_inputs;
        for (int64_t i = 0; i < last; i++) {
            int64_t width = net->sizes[i];
            linear(n, in, width, x, net->parameters + net->weights[t][i], y, packed);
            activate_rows(y, net->parameters + net->biases[t][i], n, width, net->activation);
            x = y, in = width, y += n * width;
        }
        linear(n, in, out, x, net->parameters + net->weights[t][last], values, packed);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < out; j++) values[i * out + j] += net->parameters[net->biases[t][last] + j];
    }
}

// The rows with these indices, of `size` numbers each.
static void take_rows(const float *from, const int32_t *rows, int64_t n, int64_t size, float *to) {
    for (int64_t i = 0; i < n; i++) memcpy(to + i * size, from + rows[i] * size, sizeof(float) * size);
}

// From the derivatives `d_values` of a loss for what `sf_values` wrote with this memory: adds the gradients of all
// parameters where the network `trains`, and writes `d_inputs` [n, num_inputs] if they are not null.
// A row without a derivative is left out. Where the least of several values counts, that is most of the work of each.
void sf_through_values(const Network *net, int64_t n, const float *inputs, const float *d_values, float *d_inputs,
                       int64_t trains, float *memory) {
    int64_t layers = of_layers(net), wide = widest(net), last = net->num_layers, out = net->num_params;
    int64_t first = net->num_inputs;
    float *gradient = memory + n * net->num_towers * layers, *next = gradient + n * wide, *kept = next + n * wide;
    int32_t *rows = (int32_t *)(kept + n * (first + layers + out));
    float *packed = (float *)(rows + n);
    if (d_inputs) memset(d_inputs, 0, sizeof(float) * n * first);
    for (int64_t t = 0; t < net->num_towers; t++, d_values += n * out) {
        int64_t m = 0;
        for (int64_t i = 0; i < n; i++) {
            int counts = 0;
            for (int64_t j = 0; j < out; j++) counts |= d_values[i * out + j] != 0.0f;
            if (counts) rows[m++] = i;
        }
        if (!m) continue;
        const float *d_y = d_values, *x = inputs, *ys[MOST_LAYERS];
        const float *tower = memory + t * n * layers;
        for (int64_t i = 0; i < last; tower += n * net->sizes[i], i++) ys[i] = tower;
        if (m < n) {
            float *to = kept;
            take_rows(d_values, rows, m, out, to), d_y = to, to += m * out;
            if (trains) take_rows(inputs, rows, m, first, to), x = to, to += m * first;
            for (int64_t i = 0; i < last; to += m * net->sizes[i], i++)
                take_rows(ys[i], rows, m, net->sizes[i], to), ys[i] = to;
        }
        for (int64_t i = last; i >= 0; i--) {
            int64_t in = i ? net->sizes[i - 1] : first, width = i < last ? net->sizes[i] : out;
            if (i < last) derive_rows(gradient, ys[i], m, width, net->activation), d_y = gradient;
            if (trains)
                add_gradients(m, in, width, i ? ys[i - 1] : x, d_y, net->gradients + net->weights[t][i],
                              net->gradients + net->biases[t][i], packed);
            if (!i && !d_inputs) break;
            product(m, in, width, d_y, width, 1, net->parameters + net->weights[t][i], in, 1, next, 0, packed);
            float *swap = gradient;
            gradient = next, next = swap;
        }
        if (!d_inputs) continue;
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < first; j++) d_inputs[rows[i] * first + j] += gradient[i * first + j];
    }
}

// ---- acting ------------------------------------------------------------------------------------------------------

// Where trajectories lie; the same fields in the same order as in `sf.nets.fast.small_networks`.
typedef struct {
    int64_t num_policies, every_row_acts;  // the latter 0 where a policy acts for the rows with its id
    int64_t num_steps, num_rows;
    const void *observations;  // [slots, steps + 1, rows, num_inputs]
    void *actions;             // [slots, steps, rows] int64, or [slots, steps, rows, numbers] float32
    float *log_probs;          // [slots, steps, rows]
    float *values;             // [slots, steps + 1, rows]
    int64_t *policy_version;   // [slots, steps, rows]
    const int64_t *policy_id;  // [slots, steps, rows]
} TrajectoryMemory;

// Prepared observations of the n rows with these indices, or of the first n.
static void take_inputs(const Network *net, int64_t n, const int64_t *rows, const void *observations, float *inputs) {
    int64_t size = net->num_inputs;
    for (int64_t i = 0; i < n; i++, inputs += size) {
        int64_t first = (rows ? rows[i] : i) * size;
        for (int64_t j = 0; j < size; j++) {
            if (net->is_wide) {
                double wide = ((const double *)observations)[first + j];
                if (net->mean) wide -= net->mean[j];
                if (net->mean_rest) wide -= net->mean_rest[j];
                inputs[j] = (float)wide;
            } else {
                inputs[j] = ((const float *)observations)[first + j] - (net->mean ? net->mean[j] : 0.0f);
            }
            if (!net->mean) continue;
            float x = inputs[j] / net->std[j];
            x = x < -net->clip ? -net->clip : x;
            inputs[j] = x > net->clip ? net->clip : x;
        }
    }
}

// The choice whose waiting time, with the logarithm `noise`, is the least for its logit; and its log-probability.
static int64_t choose_one(const Network *net, const float *logits, const float *noise, float *log_prob) {
    int64_t chosen = 0;
    float most = logits[0], sum = 0.0f;
    for (int64_t j = 1; j < net->num_params; j++) {
        if (logits[j] - noise[j] > logits[chosen] - noise[chosen]) chosen = j;
        most = logits[j] > most ? logits[j] : most;
    }
    for (int64_t j = 0; j < net->num_params; j++) sum += expf(logits[j] - most);
    *log_prob = logits[chosen] - most - logf(sum);
    return chosen;
}

// Numbers of the normal distribution from those of the standard one, and their log-probability.
static float choose_numbers(const Network *net, const float *params, const float *noise, float *action) {
    int64_t size = numbers_of(net);
    int is_inside;
    float density = 0.0f;
    for (int64_t j = 0; j < size; j++) {
        float log_std = log_std_of(net, params, size, j, &is_inside), std = expf(log_std);
        action[j] = noise[j] * std + params[j];
        float distance = (action[j] - params[j]) / std;
        density += -0.5f * distance * distance - log_std;
    }
    return density - size * HALF_LOG_TWO_PI;
}

// Numbers of memory for `sf_act`.
int64_t sf_acting_scratch(const Network *net, int64_t num_rows) {
    return num_rows * (net->num_params + 1) + sf_scratch(net, num_rows);
}

// Acts in one step of a slot for all policies and writes what they say; values only where the step is the last one.
//
// noise [rows, n] has random numbers; `versions` [policies] are those of the networks. `counts` [policies + rows] gets
// the rows of each policy, and the indices of some rows.
void sf_act(const Network *networks, const TrajectoryMemory *at, const int64_t *versions, int64_t slot, int64_t step,
            const float *noise, int64_t *counts, float *memory) {
    int64_t all = at->num_rows, acts = step < at->num_steps, of_values = (slot * (at->num_steps + 1) + step) * all;
    int64_t of_steps = (slot * at->num_steps + (acts ? step : at->num_steps - 1)) * all;
    int64_t width = networks->is_wide ? sizeof(double) : sizeof(float);
    const char *observations = (const char *)at->observations + of_values * networks->num_inputs * width;
    const int64_t *policy_id = at->policy_id + of_steps;
    for (int64_t p = 0; p < at->num_policies; p++) {
        const Network *net = networks + p;
        int64_t *rows = at->every_row_acts ? 0 : counts + at->num_policies, n = rows ? 0 : all;
        if (rows)
            for (int64_t i = 0; i < all; i++)
                if (policy_id[i] == p) rows[n++] = i;
        counts[p] = n;
        if (!n) continue;
        float *params = memory, *values = params + n * net->num_params, *scratch = values + n;
        take_inputs(net, n, rows, observations, parts(net, n, scratch).inputs);
        forward(net, n, params, values, scratch);
        for (int64_t i = 0; i < n; i++) {
            int64_t row = rows ? rows[i] : i;
            float value = values[i];
            at->values[of_values + row] = net->value_std ? value * *net->value_std + *net->value_mean : value;
            if (!acts) continue;
            const float *own = params + i * net->num_params;
            if (net->distribution == CATEGORICAL) {
                int64_t *action = (int64_t *)at->actions + of_steps + row;
                *action = choose_one(net, own, noise + row * net->num_params, at->log_probs + of_steps + row);
            } else {
                int64_t size = numbers_of(net);
                float *action = (float *)at->actions + (of_steps + row) * size;
                at->log_probs[of_steps + row] = choose_numbers(net, own, noise + row * size, action);
            }
            at->policy_version[of_steps + row] = versions[p];
        }
    }
}
