#include "common/rocksdb_options.h"

#include <rocksdb/env.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "common/logging.h"

namespace ems {
namespace {

std::string_view Trimmed(std::string_view text) {
  while (text.ends_with('\n') || text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

class OurLog final : public rocksdb::Logger {
 public:
  OurLog(std::string component, std::string what)
      : Logger(rocksdb::InfoLogLevel::ERROR_LEVEL),
        component_(std::move(component)),
        what_(std::move(what)) {}
  void LogHeader(const char* /*format*/, va_list /*words*/) override {}
  void Logv(const char* format, va_list words) override {
    std::array<char, 512> line;
    std::vsnprintf(line.data(), line.size(), format, words);
    EMS_LOG(kWarn, component_, "{}, RocksDB: {}", what_, Trimmed(line.data()));
  }
  void Logv(rocksdb::InfoLogLevel level, const char* format, va_list words) override {
    if (level >= GetInfoLogLevel()) Logv(format, words);
  }

 private:
  const std::string component_;
  const std::string what_;
};

class NoRecovery final : public rocksdb::EventListener {
 public:
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason /*reason*/, rocksdb::Status /*error*/,
                            bool* auto_recovery) override {
    *auto_recovery = false;
  }
};

}  // namespace

void RemoveRocksDbDrafts(const std::string& folder) {
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    std::error_code ignored;
    if (file.path().extension() == ".dbtmp") std::filesystem::remove(file.path(), ignored);
  }
}

void SetCommonRocksDbOptions(std::string component, std::string what, rocksdb::Options* options) {
  options->info_log = std::make_shared<OurLog>(std::move(component), std::move(what));
  options->listeners.push_back(std::make_shared<NoRecovery>());
  options->max_bgerror_resume_count = 0;
  options->paranoid_checks = true;
  options->stats_dump_period_sec = 0;
  options->stats_persist_period_sec = 0;
  options->max_background_jobs = 2;
  options->compression = rocksdb::kNoCompression;  // hashes, checksums and small rows
}

}  // namespace ems
