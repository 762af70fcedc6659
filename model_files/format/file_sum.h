#pragma once
// The checksum that a source gives of a whole file, and how it is computed from the file's bytes in
// order.
//
//   md5:<32 hex>                            the MD5 of all bytes
//   md5-parts:<part bytes>:<32 hex>-<parts>  as object stores sum what was put in parts: the MD5 of
//                                            the MD5s of all parts
#include <cstdint>
#include <string>
#include <string_view>

#include "common/bytes.h"
#include "common/md5.h"
#include "common/status.h"

namespace ems::model {

// So often is a file read in vain by one reader before it counts as damaged for good.
inline constexpr uint32_t kFileReadsMax = 3;

struct FileSum {
  uint64_t part_bytes = 0;  // 0: of the whole
  uint32_t parts = 0;
  std::string hex;  // lower case

  std::string Text() const;
  friend bool operator==(const FileSum&, const FileSum&) = default;
};

// `text` of a file of `file_bytes` bytes.   Errors: kInvalidArgument
Result<FileSum> ParseFileSum(std::string_view text, uint64_t file_bytes);

// Threading: one thread.
class FileHasher final {
 public:
  // Whether sums can be computed on this machine; if not, Update and Finish abort.
  // Errors: kUnimplemented
  static Status Offered();

  explicit FileHasher(const FileSum& sum) : part_bytes_(sum.part_bytes) {}
  // The bytes that follow those that have come. Cost: as Md5Stream.
  void Update(ConstBytes bytes);
  // The sum of what has come, to be compared with FileSum::hex.
  std::string Finish();

 private:
  const uint64_t part_bytes_;
  Md5Stream part_;
  Md5Stream of_parts_;  // of the MD5s of parts that are whole
};

}  // namespace ems::model
