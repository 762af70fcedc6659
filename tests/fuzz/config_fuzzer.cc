// Any text, as configuration: a message or an error, never a crash, within the stated bounds.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/check.h"
#include "common/config.h"
#include "common/config_text.h"
#include "proto/config.pb.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ems::config::ServerConfig config;
  const ems::Status status =
      ems::config::LoadText(text, "fuzz", {"name=a", "data_dir=/d"}, &config);
  if (status.ok()) {
    // What was accepted is in range.
    EMS_CHECK(config.dram().bytes() >= 16777216 && config.network().value_bytes_max() >= 1);
    EMS_CHECK(!ems::config::OneLine(config).empty());
  }
  // The same bytes as one override.
  (void)ems::config::LoadText("", "fuzz", {"name=a", "data_dir=/d", std::string(text)}, &config);
  return 0;
}
