#include "pdc/engine/weight_maker.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>

#include "common/bytes.h"
#include "common/check.h"
#include "common/hash.h"
#include "pdc/engine/internal/counter_random.h"
#include "pdc/engine/internal/kernel_types.h"
#include "pdc/engine/tensor_plan.h"

namespace ems::pdc {
namespace {

using model::DType;

// One row of made-up weights: uniform, with the spread that was asked for.
class RowMaker final {
 public:
  RowMaker(const ModelConfig& config, const PlannedTensor& tensor)
      : stream_(Hash64(AsBytes(tensor.name), config.seed)),
        step_(tensor.spread * 1.7320508F * 0x1p-23F) {}
  void Make(uint64_t row, std::span<float> values) const {
    const uint64_t first = row * values.size();
    for (size_t i = 0; i < values.size(); ++i) {
      const uint64_t random = internal::CounterRandom(stream_, first + i) >> 40;
      values[i] = static_cast<float>(static_cast<int32_t>(random) - (1 << 23)) * step_;
    }
  }

 private:
  const uint64_t stream_;
  const float step_;
};

template <typename T>
void Append(T value, std::byte** to) {
  std::memcpy(*to, &value, sizeof value);
  *to += sizeof value;
}

// What a row is divided by to become INT8: its largest value is 127.
float ScaleOf(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest > 0 ? largest / 127.0F : 1.0F;
}

// `scales` are written by an INT8 tensor and read by the one that follows.
void Fill(const ModelConfig& config, const PlannedTensor& tensor, std::vector<float>* scales,
          std::byte* to) {
  if (tensor.is_scale) {
    EMS_CHECK(scales->size() == tensor.shape[0], "{} scales of {} rows", scales->size(),
              tensor.shape[0]);
    for (const float scale : *scales) Append(scale, &to);
    return;
  }
  if (tensor.spread == 0) {
    for (uint64_t i = 0; i < tensor.shape[0]; ++i) Append(1.0F, &to);
    return;
  }
  const RowMaker maker(config, tensor);
  std::vector<float> row(tensor.shape[1]);
  scales->assign(tensor.shape[0], 1.0F);
  for (uint64_t r = 0; r < tensor.shape[0]; ++r) {
    maker.Make(r, row);
    const float scale = (*scales)[r] = ScaleOf(row);
    for (const float value : row) {
      if (tensor.dtype == DType::kF32) {
        Append(value, &to);
      } else if (tensor.dtype == DType::kBF16) {
        Append(internal::ToBf16(value), &to);
      } else {
        Append(static_cast<int8_t>(std::nearbyint(value / scale)), &to);
      }
    }
  }
}

uint64_t BytesOf(const PlannedTensor& tensor) {
  uint64_t bytes = model::TraitsOf(tensor.dtype).block_bytes;
  for (const uint64_t size : tensor.shape) bytes *= size;
  return bytes;
}

std::string Header(const ModelConfig& config, const std::vector<PlannedTensor>& plan) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}, {kConfigKey, ToJson(config)}};
  uint64_t offset = 0;
  for (const PlannedTensor& tensor : plan) {
    const uint64_t bytes = BytesOf(tensor);
    header[tensor.name] = {{"dtype", model::TraitsOf(tensor.dtype).name},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize(RoundUp(text.size(), 8), ' ');
  std::string framed(8, '\0');
  const uint64_t length = text.size();
  std::memcpy(framed.data(), &length, sizeof length);
  return framed + text;
}

}  // namespace

Result<std::vector<std::byte>> MakeWeights(const ModelConfig& config) {
  EMS_RETURN_IF_ERROR(CheckConfig(config));
  const std::vector<PlannedTensor> plan = PlanTensors(config);
  const std::string header = Header(config, plan);
  uint64_t bytes = header.size();
  for (const PlannedTensor& tensor : plan) bytes += BytesOf(tensor);
  std::vector<std::byte> file(bytes);
  std::memcpy(file.data(), header.data(), header.size());
  std::vector<float> scales;
  uint64_t at = header.size();
  for (const PlannedTensor& tensor : plan) {
    Fill(config, tensor, &scales, file.data() + at);
    at += BytesOf(tensor);
  }
  EMS_CHECK(at == bytes, "{} of {} bytes are made", at, bytes);
  return file;
}

Status WriteWeights(const ModelConfig& config, const std::string& path) {
  EMS_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, MakeWeights(config));
  const std::string beside = path + ".part";
  std::ofstream out(beside, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out || std::rename(beside.c_str(), path.c_str()) != 0) {
    std::remove(beside.c_str());
    return Error(StatusCode::kInternal, "{} cannot be written: {}", path,
                 std::generic_category().message(errno));
  }
  return OkStatus();
}

}  // namespace ems::pdc
