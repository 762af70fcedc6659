#pragma once
// The model as a textbook has it: double precision, one token at a time, keys and values of every
// head made from the latents, every expert looked at. Shares nothing with the engine but the
// weights' names.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "pdc/engine/model_weights.h"

namespace ems::pdc::test {

class ReferenceModel {
 public:
  using Vec = std::vector<double>;
  struct Key {
    Vec latent, rope;
  };
  struct Matrix {
    size_t out = 0, in = 0;
    Vec values;
    Vec operator*(const Vec& x) const {
      Vec y(out);
      for (size_t o = 0; o < out; ++o)
        for (size_t i = 0; i < in; ++i) y[o] += values[o * in + i] * x[i];
      return y;
    }
  };

  explicit ReferenceModel(const ModelWeights& weights) : weights_(weights), c_(weights.config()) {}

  // Logits of each token. Remembers hidden states and the last layer's keys for Draft.
  std::vector<Vec> Logits(const std::vector<uint32_t>& tokens) {
    caches_.assign(c_.layers, {});
    std::vector<Vec> all;
    for (size_t position = 0; position < tokens.size(); ++position) {
      Vec h = RowOf("model.embed_tokens", tokens[position]);
      for (uint32_t layer = 0; layer < c_.layers; ++layer) {
        const std::string name = "model.layers." + std::to_string(layer) + ".";
        const Vec x = Norm(h, name + "input_layernorm");
        Remember(name + "self_attn.", x, position, &caches_[layer]);
        Add(Attend(name + "self_attn.", x, position, caches_[layer]), &h);
        Add(FeedForward(name + "mlp.", layer, Norm(h, name + "post_attention_layernorm")), &h);
      }
      hidden_ = h;
      all.push_back(Get("lm_head") * Norm(h, "model.norm"));
    }
    return all;
  }

  // The MTP head's logits of the token after `next`, which follows the last call's tokens.
  Vec Draft(uint32_t next) {
    Vec joined = Norm(RowOf("model.embed_tokens", next), "model.mtp.enorm");
    const Vec hidden = Norm(hidden_, "model.mtp.hnorm");
    joined.insert(joined.end(), hidden.begin(), hidden.end());
    Vec h = Get("model.mtp.eh_proj") * joined;
    const std::vector<Key>& cache = caches_.back();
    Add(Attend("model.mtp.self_attn.", Norm(h, "model.mtp.input_layernorm"), cache.size(), cache),
        &h);
    Add(Gated("model.mtp.mlp.", Norm(h, "model.mtp.post_attention_layernorm")), &h);
    return Get("lm_head") * Norm(h, "model.mtp.norm");
  }

  // The tensor's values.
  const Matrix& Get(const std::string& name) {
    auto [found, made] = matrices_.try_emplace(name);
    if (!made) return found->second;
    const ModelWeights::Tensor& tensor = weights_.tensor(name + ".weight");
    Matrix& m = found->second;
    m.out = tensor.shape[0];
    m.in = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
    for (size_t i = 0; i < m.out * m.in; ++i) {
      if (tensor.dtype == model::DType::kF32) {
        m.values.push_back(static_cast<double>(At<float>(tensor, i)));
      } else if (tensor.dtype == model::DType::kBF16) {
        const uint32_t bits = static_cast<uint32_t>(At<uint16_t>(tensor, i)) << 16;
        float value = 0;
        std::memcpy(&value, &bits, sizeof value);
        m.values.push_back(static_cast<double>(value));
      } else {
        const auto& scale = weights_.tensor(name + ".weight_scale");
        m.values.push_back(static_cast<double>(At<int8_t>(tensor, i)) *
                           static_cast<double>(At<float>(scale, i / m.in)));
      }
    }
    return m;
  }
  template <typename T>
  static T At(const ModelWeights::Tensor& tensor, size_t i) {
    T value;
    std::memcpy(&value, tensor.bytes.data() + i * sizeof value, sizeof value);
    return value;
  }
  Vec RowOf(const std::string& name, size_t row) {
    const Matrix& m = Get(name);
    const auto begin = m.values.begin() + static_cast<std::ptrdiff_t>(row * m.in);
    return Vec(begin, begin + static_cast<std::ptrdiff_t>(m.in));
  }

  Vec Norm(const Vec& x, const std::string& name) {
    double squares = 0;
    for (const double v : x) squares += v * v;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) +
                                       static_cast<double>(c_.norm_epsilon));
    Vec y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * Get(name).values[i];
    return y;
  }
  static void Add(const Vec& x, Vec* y) {
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] += x[i];
  }
  Vec Rotated(const Vec& x, size_t position) const {
    Vec y(x.size());
    const size_t half = x.size() / 2;
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(static_cast<double>(c_.rope_base),
                                    -2.0 * static_cast<double>(i) / static_cast<double>(x.size()));
      y[i] = x[i] * std::cos(angle) - x[half + i] * std::sin(angle);
      y[half + i] = x[half + i] * std::cos(angle) + x[i] * std::sin(angle);
    }
    return y;
  }
  static Vec Part(const Vec& x, size_t first, size_t count) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(first);
    return Vec(begin, begin + static_cast<std::ptrdiff_t>(count));
  }

  void Remember(const std::string& self, const Vec& x, size_t position, std::vector<Key>* cache) {
    const Vec down = Get(self + "kv_a_proj_with_mqa") * x;
    cache->push_back({Norm(Part(down, 0, c_.latent_dim), self + "kv_a_layernorm"),
                      Rotated(Part(down, c_.latent_dim, c_.rope_dim), position)});
  }

  Vec Attend(const std::string& self, const Vec& x, size_t position,
             const std::vector<Key>& cache) {
    const Vec q = c_.q_lora_dim == 0 ? Get(self + "q_proj") * x
                                     : Get(self + "q_b_proj") *
                                           Norm(Get(self + "q_a_proj") * x, self + "q_a_layernorm");
    std::vector<Vec> expanded;
    for (const Key& key : cache) expanded.push_back(Get(self + "kv_b_proj") * key.latent);
    Vec joined;
    for (size_t head = 0; head < c_.heads; ++head) {
      const Vec nope = Part(q, head * c_.query_dim(), c_.nope_dim);
      const Vec rope = Rotated(Part(q, head * c_.query_dim() + c_.nope_dim, c_.rope_dim), position);
      const size_t at = head * (c_.nope_dim + c_.value_dim);
      Vec weights;
      for (size_t j = 0; j < cache.size(); ++j) {
        double score = 0;
        for (size_t i = 0; i < c_.nope_dim; ++i) score += nope[i] * expanded[j][at + i];
        for (size_t i = 0; i < c_.rope_dim; ++i) score += rope[i] * cache[j].rope[i];
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(c_.query_dim()))));
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      Vec value(c_.value_dim);
      for (size_t j = 0; j < cache.size(); ++j)
        for (size_t i = 0; i < c_.value_dim; ++i)
          value[i] += weights[j] / sum * expanded[j][at + c_.nope_dim + i];
      joined.insert(joined.end(), value.begin(), value.end());
    }
    return Get(self + "o_proj") * joined;
  }

  Vec Gated(const std::string& name, const Vec& x) {
    Vec gate = Get(name + "gate_proj") * x;
    const Vec up = Get(name + "up_proj") * x;
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    return Get(name + "down_proj") * gate;
  }

  Vec FeedForward(const std::string& name, uint32_t layer, const Vec& x) {
    if (c_.is_dense(layer)) return Gated(name, x);
    Vec scores = Get(name + "gate") * x;
    if (c_.router == RouterKind::kSigmoid) {
      for (double& score : scores) score = 1 / (1 + std::exp(-score));
    } else {
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score);
      for (double& score : scores) score /= sum;
    }
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    order.resize(c_.experts_per_token);
    double sum = 0;
    for (const size_t expert : order) sum += scores[expert];
    Vec y = c_.shared_experts > 0 ? Gated(name + "shared_experts.", x) : Vec(x.size());
    for (const size_t expert : order) {
      Vec part = Gated(name + "experts." + std::to_string(expert) + ".", x);
      for (double& v : part) v *= scores[expert] / sum * static_cast<double>(c_.routed_scale);
      Add(part, &y);
    }
    return y;
  }

 private:
  const ModelWeights& weights_;
  const ModelConfig& c_;
  std::map<std::string, Matrix> matrices_;
  std::vector<std::vector<Key>> caches_;
  Vec hidden_;
};

}  // namespace ems::pdc::test
