#include "bench/serving_loop.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "fabric/socket.h"

namespace ems::bench {
namespace {

constexpr Duration kPoolTimeout = std::chrono::seconds(60);
constexpr Duration kLoopTimeout = std::chrono::minutes(3);

}  // namespace

Status PdcLoop::Launch(const std::string& program, std::vector<std::string> settings,
                       Duration timeout) {
  BenchDaemonOptions options{.program = {}, .name = program, .folder = folder_, .flags = {}};
  EMS_ASSIGN_OR_RETURN(options.program, FindDaemon(options_.programs, program));
  for (std::string& setting : settings) {
    options.flags.emplace_back("--set");
    options.flags.push_back(std::move(setting));
  }
  EMS_ASSIGN_OR_RETURN(std::unique_ptr<BenchDaemon> daemon, BenchDaemon::Start(options));
  daemons_.push_back(std::move(daemon));
  return daemons_.back()->WaitReady(timeout);
}

Result<std::string> PdcLoop::LaunchPool() {
  EMS_RETURN_IF_ERROR(Launch("mp-controller",
                             {fmt::format("data_dir={}/controller", folder_), "listen=127.0.0.1:0",
                              "http_listen=127.0.0.1:0"},
                             kPoolTimeout));
  std::string controller = daemons_.back()->Field("address");
  EMS_RETURN_IF_ERROR(Launch(
      "mp-server",
      {"name=server-1", "controller=" + controller, fmt::format("data_dir={}/server-1", folder_),
       "listen=127.0.0.1:0", "http_listen=127.0.0.1:0",
       fmt::format("unix_path={}/server-1.sock", folder_), "dram.bytes=" + options_.pool_bytes},
      kPoolTimeout));
  return controller;
}

Result<std::string> PdcLoop::Start(bool with_ems) {
  if (!folder_.empty())
    return Error(StatusCode::kFailedPrecondition, "the serving loop runs already");
  char path[] = "/tmp/ems-bench-XXXXXX";  // short: socket paths have 107 characters
  if (mkdtemp(path) == nullptr)
    return Error(StatusCode::kInternal, "no temporary folder: {}", fabric::ErrnoText(errno));
  folder_ = path;
  std::string controller = with_ems ? options_.controller : "";
  if (with_ems && controller.empty()) {
    EMS_ASSIGN_OR_RETURN(controller, LaunchPool());
  }
  std::vector<std::string> settings = {"role=all",
                                       "model.preset=" + options_.model,
                                       "http_listen=127.0.0.1:0",
                                       "prefill.workers=1",
                                       "decode.workers=1",
                                       "pool.controller=" + controller};
  settings.insert(settings.end(), options_.settings.begin(), options_.settings.end());
  EMS_RETURN_IF_ERROR(Launch("ems-pdc", std::move(settings), kLoopTimeout));
  std::string address = daemons_.back()->Field("http");
  if (address.empty())
    return Error(StatusCode::kInternal, "ems-pdc does not say where its HTTP API listens");
  return address;
}

// The loop before the pool, servers before their controller.
void PdcLoop::Stop() {
  while (!daemons_.empty()) daemons_.pop_back();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  folder_.clear();
}

}  // namespace ems::bench
