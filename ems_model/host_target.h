#pragma once
// Loads files of a version into memory of this process.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ems_model/load_target.h"

namespace ems::model {

// Each file lies in one piece, beginning on a page; large ones on huge pages where the machine
// gives them. Bound: the wanted files' bytes, taken when the load begins, touched as bytes arrive.
// Threading: as LoadTarget; file() once the load has ended.
class HostTarget final : public LoadTarget {
 public:
  struct Options {
    // Which files; empty: all.
    std::function<bool(std::string_view path)> choose{};
    // The caller's memory for a file, exactly its size; empty: it is allocated here.
    std::function<Result<MutableBytes>(std::string_view path, uint64_t bytes)> room{};
  };
  HostTarget() : HostTarget(Options{}) {}
  explicit HostTarget(Options options);
  ~HostTarget() override;
  HostTarget(const HostTarget&) = delete;
  HostTarget& operator=(const HostTarget&) = delete;

  // Errors: kResourceExhausted  no memory    kInvalidArgument  room of another size    as `room`
  Status Begin(std::span<const LoadFile> files) override;
  uint64_t Wants(uint32_t file, uint64_t offset, uint64_t bytes) override;
  Status Place(uint32_t file, uint64_t offset, uint64_t bytes,
               std::vector<LoadRange>* ranges) override;
  Status Arrived(uint32_t, uint64_t, uint64_t) override { return OkStatus(); }
  Status End(const Status& load) override;

  // The bytes of a file after a load that went well; they live as long as this target.
  // Errors: kNotFound  no such file, not wanted, or the load failed
  Result<ConstBytes> file(std::string_view path) const;

 private:
  struct File {
    std::string path;
    bool wanted = false;
    MutableBytes bytes;
    bool mapped = false;  // memory of our own
  };
  void Release();

  const Options options_;
  std::vector<File> files_;
  bool loaded_ = false;
};

}  // namespace ems::model
