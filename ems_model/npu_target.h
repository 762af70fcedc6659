#pragma once
// Loads files of a version into the HBM of an (emulated) NPU: blocks arrive in staging memory of
// the host and go on by SDMA.
//
// Bound: staging memory for the blocks that a load has under way (its threads × batch_bytes); kept
// for the next ones until the target goes. HBM for the wanted files, taken when the load begins.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "ems_model/load_target.h"
#include "fabric/emulated/npu_device.h"

namespace ems::model {

// Threading: as LoadTarget; file() once the load has ended.
class NpuTarget final : public LoadTarget {
 public:
  struct Options {
    // Which files; empty: all.
    std::function<bool(std::string_view path)> choose{};
    uint32_t streams = 2;                              // SDMA queues
    Duration copy_timeout = std::chrono::seconds(30);  // of one block
  };
  struct DeviceFile {
    fabric::HbmAddress at;
    uint64_t bytes = 0;
  };
  // `device` must outlive the target, which gives the HBM back when it goes.
  NpuTarget(fabric::NpuDevice* device, Options options);
  explicit NpuTarget(fabric::NpuDevice* device) : NpuTarget(device, Options{}) {}
  ~NpuTarget() override;
  NpuTarget(const NpuTarget&) = delete;
  NpuTarget& operator=(const NpuTarget&) = delete;

  // Errors: kResourceExhausted  not so much HBM
  Status Begin(std::span<const LoadFile> files) override;
  uint64_t Wants(uint32_t file, uint64_t offset, uint64_t bytes) override;
  Status Place(uint32_t file, uint64_t offset, uint64_t bytes,
               std::vector<LoadRange>* ranges) override;
  // Returns once the block is in HBM. Errors: kDeadlineExceeded  the device does not answer
  Status Arrived(uint32_t file, uint64_t offset, uint64_t bytes) override;
  Status End(const Status& load) override;

  // Where a file lies after a load that went well. Errors: kNotFound  no such file, not wanted, or
  // the load failed
  Result<DeviceFile> file(std::string_view path) const;

 private:
  struct File {
    std::string path;
    bool wanted = false;
    DeviceFile device;
  };
  using Buffer = std::unique_ptr<std::byte[]>;
  struct Staging {
    std::map<std::pair<uint32_t, uint64_t>, std::pair<Buffer, uint64_t>> under_way;  // by block
    std::multimap<uint64_t, Buffer> free;                                            // by size
  };
  void Release();

  fabric::NpuDevice* const device_;
  const Options options_;
  std::vector<std::unique_ptr<fabric::NpuStream>> streams_;
  std::vector<File> files_;
  Guarded<Staging> staging_;
  bool loaded_ = false;
};

}  // namespace ems::model
