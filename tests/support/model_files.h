#pragma once
// Builds model files byte by byte, knowing nothing of the code that reads them; also wrong ones.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace ems::testing {

template <typename T>
requires std::is_arithmetic_v<T> std::string Packed(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// A safetensors file with this JSON as its header and `data_bytes` bytes of data.
inline std::string SafetensorsFile(std::string_view json, uint64_t data_bytes) {
  return Packed<uint64_t>(json.size()).append(json).append(data_bytes, 'd');
}

// Tensors back to back in the order of Add.
class SafetensorsBuilder final {
 public:
  SafetensorsBuilder& Add(std::string_view name, std::string_view dtype,
                          const std::vector<uint64_t>& shape, uint64_t bytes) {
    std::string extents;
    for (const uint64_t extent : shape) {
      extents += (extents.empty() ? "" : ",") + std::to_string(extent);
    }
    Entry(name, std::string(R"({"dtype":")").append(dtype) + R"(","shape":[)" + extents +
                    R"(],"data_offsets":[)" + std::to_string(data_bytes_) + "," +
                    std::to_string(data_bytes_ + bytes) + "]}");
    data_bytes_ += bytes;
    return *this;
  }
  SafetensorsBuilder& Entry(std::string_view name, std::string_view json) {
    entries_.append(entries_.empty() ? "\"" : ",\"").append(name).append("\":").append(json);
    return *this;
  }
  std::string Json() const { return "{" + entries_ + "}"; }
  std::string Build() const { return SafetensorsFile(Json(), data_bytes_); }
  uint64_t data_bytes() const { return data_bytes_; }

 private:
  std::string entries_;
  uint64_t data_bytes_ = 0;
};

// Value types of GGUF's metadata, as the specification numbers them.
enum GgufType : uint32_t {
  kGgufUint8,
  kGgufInt8,
  kGgufUint16,
  kGgufInt16,
  kGgufUint32,
  kGgufInt32,
  kGgufFloat32,
  kGgufBool,
  kGgufString,
  kGgufArray,
  kGgufUint64,
  kGgufInt64,
  kGgufFloat64,
};

inline std::string GgufText(std::string_view text) {
  return Packed<uint64_t>(text.size()).append(text);
}
// A metadata array's value: type, length, elements.
inline std::string GgufList(uint32_t type, const std::vector<std::string>& elements) {
  std::string value = Packed(type) + Packed<uint64_t>(elements.size());
  for (const std::string& element : elements) value += element;
  return value;
}

class GgufBuilder final {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;  // of the layout; the file says so only when Pair tells it
  bool pad_end = true;

  GgufBuilder& Pair(std::string_view key, uint32_t type, std::string_view value) {
    pairs_ += GgufText(key) + Packed(type);
    pairs_ += value;
    ++pair_count_;
    return *this;
  }
  // `dims`: innermost first.
  GgufBuilder& Add(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                   uint64_t bytes) {
    AddAt(name, dims, type, data_bytes_);
    data_bytes_ = Padded(last_end_ = data_bytes_ + bytes);
    return *this;
  }
  GgufBuilder& AddAt(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                     uint64_t offset) {
    infos_ += GgufText(name) + Packed<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (const uint64_t extent : dims) infos_ += Packed(extent);
    infos_ += Packed(type) + Packed(offset);
    ++tensor_count_;
    return *this;
  }
  GgufBuilder& Data(uint64_t bytes) {
    data_bytes_ = last_end_ = bytes;
    return *this;
  }

  std::string Header() const {
    return "GGUF" + Packed(version) + Packed(tensor_count_) + Packed(pair_count_) + pairs_ + infos_;
  }
  std::string Build() const {
    std::string file = Header();
    file.append(Padded(file.size()) - file.size(), '\0');
    return file.append(pad_end ? data_bytes_ : last_end_, 'd');
  }

 private:
  uint64_t Padded(uint64_t bytes) const { return (bytes + alignment - 1) / alignment * alignment; }

  std::string pairs_;
  std::string infos_;
  uint64_t pair_count_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t data_bytes_ = 0;
  uint64_t last_end_ = 0;
};

}  // namespace ems::testing
