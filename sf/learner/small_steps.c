// The parts of an optimizer step around a network, for `sf.learner.small_steps`: [n] float32 in one pass each.
//
// What is not a number stays that in all of them, so that the step is skipped.

#include <math.h>
#include <stdint.h>

// (a - mean) / (deviation + 1e-8), with a divisor of n - ddof for the variance.
void sf_normalize(int64_t n, int64_t ddof, const float *a, float *normalized) {
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < n; i++) sum += a[i];
    double mean = sum / n;
    for (int64_t i = 0; i < n; i++) squares += (a[i] - mean) * (a[i] - mean);
    float shift = (float)mean, scale = (float)sqrt(squares / (n - ddof)) + 1e-8f;
    for (int64_t i = 0; i < n; i++) normalized[i] = (a[i] - shift) / scale;
}

// The same fields in the same order as `sf.learner.small_steps.Coefficients`.
typedef struct {
    float low, high;                  // clip range of the ratio
    float least_ratio, most_ratio;    // limits of the reciprocal form
    float most_log_ratio, clip_value;  // 0 for values that are not clipped
    float value, entropy, kl;
    int32_t is_reciprocal;
} Coefficients;

static inline float limited(float x, float low, float high) {
    x = x < low ? low : x;
    return x > high ? high : x;
}

// Derivatives of PPO's loss, see `PPO.gradients`, which has the same formulas.
void sf_ppo_gradients(int64_t n, const Coefficients *c, const float *log_probs, const float *behavior_log_probs,
                      const float *advantages, const float *values, const float *old_values, const float *targets,
                      float *d_log_probs, float *d_entropies, float *d_values) {
    float weight = 1.0f / n;
    for (int64_t i = 0; i < n; i++) {
        float log_ratio = log_probs[i] - behavior_log_probs[i], advantage = advantages[i];
        int is_beyond = log_ratio > c->most_log_ratio;
        float ratio = expf(is_beyond ? c->most_log_ratio : log_ratio);
        float bounded = c->is_reciprocal ? limited(ratio, c->least_ratio, c->most_ratio) : ratio;
        float gain = advantage * bounded;
        int is_constant = gain > advantage * limited(ratio, c->low, c->high) || is_beyond || ratio < bounded ||
                          ratio > bounded;
        d_log_probs[i] = is_constant ? 0.0f : -weight * gain;
        if (c->kl > 0.0f && !is_beyond) d_log_probs[i] += weight * c->kl * (ratio - 1.0f);
        d_entropies[i] = -weight * c->entropy;

        float error = values[i] - targets[i];
        if (c->clip_value > 0.0f) {
            float change = values[i] - old_values[i];
            float clipped = limited(change, -c->clip_value, c->clip_value) + old_values[i] - targets[i];
            if (fabsf(change) > c->clip_value && fabsf(clipped) > fabsf(error)) error = 0.0f;
        }
        d_values[i] = weight * c->value * error;
    }
}

// Scales a gradient so that its norm is at most `most`, 0 for no limit; returns the norm before.
double sf_clip(int64_t n, float most, float *gradient) {
    double squares = 0.0;
    for (int64_t block = 0; block < n; block += 256) {
        int64_t end = block + 256 < n ? block + 256 : n;
        float part[16] = {0.0f};
        int64_t i = block;
        for (; i + 16 <= end; i += 16)
            for (int64_t j = 0; j < 16; j++) part[j] += gradient[i + j] * gradient[i + j];
        for (; i < end; i++) part[0] += gradient[i] * gradient[i];
        for (int64_t j = 0; j < 16; j++) squares += part[j];
    }
    float norm = (float)sqrt(squares), factor = most / (norm + 1e-6f);
    if (most > 0.0f && !(factor >= 1.0f))
        for (int64_t i = 0; i < n; i++) gradient[i] *= factor;
    return norm;
}

// Adam (Kingma and Ba 2015, algorithm 1); `step` counts from 1.
void sf_adam(int64_t n, int64_t step, double lr, double beta1, double beta2, double eps, float *restrict parameters,
             const float *restrict gradient, float *restrict exp_avg, float *restrict exp_avg_sq) {
    float first = (float)(1.0 - beta1), kept = (float)beta2, second = (float)(1.0 - beta2);
    float size = (float)(lr / (1.0 - pow(beta1, step))), scale = (float)(1.0 / sqrt(1.0 - pow(beta2, step)));
    float least = (float)eps;
    for (int64_t i = 0; i < n; i++) {
        float g = gradient[i];
        exp_avg[i] += first * (g - exp_avg[i]);
        exp_avg_sq[i] = kept * exp_avg_sq[i] + second * g * g;
        parameters[i] -= size * exp_avg[i] / (sqrtf(exp_avg_sq[i]) * scale + least);
    }
}
