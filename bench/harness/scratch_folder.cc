#include "bench/harness/scratch_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "fabric/net/socket.h"

namespace ems::bench {

Result<std::unique_ptr<ScratchFolder>> ScratchFolder::Make(const std::string& parent) {
  std::string path = parent + "/ems-bench-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr)
    return Error(StatusCode::kInvalidArgument, "no folder {}: {}", path, fabric::ErrnoText(errno));
  return std::make_unique<ScratchFolder>(Passkey{}, std::move(path));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace ems::bench
