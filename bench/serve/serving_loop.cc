#include "bench/serve/serving_loop.h"

#include <fmt/format.h>

#include <utility>

namespace ems::bench {
namespace {

constexpr Duration kPoolTimeout = std::chrono::seconds(60);
constexpr Duration kLoopTimeout = std::chrono::minutes(3);

}  // namespace

Status PdcLoop::Launch(const std::string& program, const std::vector<std::string>& settings,
                       Duration timeout) {
  EMS_ASSIGN_OR_RETURN(auto daemon, BenchDaemon::StartReady(options_.programs, program,
                                                            folder_->path(), settings, timeout));
  daemons_.push_back(std::move(daemon));
  return OkStatus();
}

Result<std::string> PdcLoop::LaunchPool() {
  const std::string& folder = folder_->path();
  EMS_RETURN_IF_ERROR(Launch("mp-controller",
                             {fmt::format("data_dir={}/controller", folder), "listen=127.0.0.1:0",
                              "http_listen=127.0.0.1:0"},
                             kPoolTimeout));
  std::string controller = daemons_.back()->Field("address");
  EMS_RETURN_IF_ERROR(Launch(
      "mp-server",
      {"name=server-1", "controller=" + controller, fmt::format("data_dir={}/server-1", folder),
       "listen=127.0.0.1:0", "http_listen=127.0.0.1:0",
       fmt::format("unix_path={}/server-1.sock", folder), "dram.bytes=" + options_.pool_bytes},
      kPoolTimeout));
  return controller;
}

Result<std::unique_ptr<PdcLoop>> PdcLoop::Start(const PdcLoopOptions& options, bool with_ems) {
  auto loop = std::make_unique<PdcLoop>(Passkey{}, options);
  EMS_ASSIGN_OR_RETURN(loop->folder_, ScratchFolder::Make());
  std::string controller = with_ems ? options.controller : "";
  if (with_ems && controller.empty()) {
    EMS_ASSIGN_OR_RETURN(controller, loop->LaunchPool());
  }
  std::vector<std::string> settings = {"role=all",
                                       "model.preset=" + options.model,
                                       "http_listen=127.0.0.1:0",
                                       "prefill.workers=1",
                                       "decode.workers=1",
                                       "pool.controller=" + controller};
  settings.insert(settings.end(), options.settings.begin(), options.settings.end());
  EMS_RETURN_IF_ERROR(loop->Launch("ems-pdc", settings, kLoopTimeout));
  loop->address_ = loop->daemons_.back()->Field("http");
  if (loop->address_.empty())
    return Error(StatusCode::kInternal, "ems-pdc does not say where its HTTP API listens");
  return loop;
}

// The loop before the pool, servers before their controller.
PdcLoop::~PdcLoop() {
  while (!daemons_.empty()) daemons_.pop_back();
}

}  // namespace ems::bench
