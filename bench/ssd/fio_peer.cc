#include "bench/ssd/fio_peer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "bench/harness/child_process.h"
#include "bench/harness/interrupt.h"
#include "common/thread_pool.h"
#include "fabric/net/socket.h"

namespace ems::bench {
namespace {

constexpr Duration kPollInterval = std::chrono::milliseconds(20);
constexpr size_t kLogShownMax = 600;
constexpr const char* kEngines[] = {"io_uring", "libaio", "psync"};

}  // namespace

Result<FioFigures> ParseFio(const std::string& json, bool write) {
  // Warnings may stand in front of the document.
  const std::string text = json.substr(std::min(json.size(), json.find('{')));
  const auto parsed = nlohmann::json::parse(text, nullptr, false);
  const auto at = nlohmann::json::json_pointer("/jobs/0");
  const auto side = at / (write ? "write" : "read");
  if (parsed.is_discarded() || !parsed.contains(side) || !parsed[side].is_object())
    return Error(StatusCode::kDataLoss, "fio said: {}", text.substr(0, kLogShownMax));
  const auto number = [&](const nlohmann::json::json_pointer& name) {
    return parsed.contains(name) && parsed[name].is_number() ? parsed[name].get<double>() : 0.0;
  };
  FioFigures figures;
  figures.bytes = static_cast<uint64_t>(number(side / "io_bytes"));
  figures.gb_per_second = number(side / "bw_bytes") / 1e9;
  figures.p50_us = number(side / "clat_ns" / "percentile" / "50.000000") / 1e3;
  figures.p99_us = number(side / "clat_ns" / "percentile" / "99.000000") / 1e3;
  const double cpu_percent = number(at / "usr_cpu") + number(at / "sys_cpu");
  const double seconds = number(side / "runtime") / 1e3;
  if (number(at / "error") != 0 || figures.bytes == 0 || figures.gb_per_second <= 0)
    return Error(StatusCode::kDataLoss, "fio moved {} bytes, error {}", figures.bytes,
                 number(at / "error"));
  figures.cpu_per_gb = cpu_percent / 100 * seconds / (static_cast<double>(figures.bytes) / 1e9);
  return figures;
}

Status PreallocateFile(const std::string& path, uint64_t bytes) {
  const fabric::Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return Error(StatusCode::kUnavailable, "{}: {}", path, fabric::ErrnoText(errno));
  const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  if (error == 0) return OkStatus();
  return Error(error == ENOSPC ? StatusCode::kResourceExhausted : StatusCode::kUnavailable,
               "{} of {}: {}", FormatBytes(bytes), path, fabric::ErrnoText(error));
}

FioPeer::FioPeer(std::string folder) : folder_(std::move(folder)), program_(FindProgram("fio")) {
  if (program_.empty()) missing_ = "fio is not installed (Debian package fio)";
}

Result<FioFigures> FioPeer::Run(const FioJob& job) {
  if (program_.empty()) return Error(StatusCode::kNotFound, "{}", missing_);
  if (!engine_.empty()) return RunWith(engine_, job);
  Result<FioFigures> figures = Error(StatusCode::kUnavailable, "fio did not run");
  for (const char* engine : kEngines) {
    figures = RunWith(engine, job);
    if (figures.ok()) engine_ = engine;
    if (figures.ok() || Interrupted()) break;
  }
  return figures;
}

Result<FioFigures> FioPeer::RunWith(const std::string& engine, const FioJob& job) {
  const std::string out = folder_ + "/fio.json";
  const std::string log = folder_ + "/fio.log";
  for (const std::string& old : {out, log}) (void)std::remove(old.c_str());
  const std::vector<std::string> arguments = {
      program_,
      "--name=ems-bench",
      "--thread",
      "--direct=1",
      "--fallocate=none",
      "--ioengine=" + engine,
      "--filename=" + job.path,
      std::string("--rw=") + (job.write ? "write" : "randread"),
      fmt::format("--bs={}", job.block_bytes),
      "--randrepeat=0",
      fmt::format("--offset={}", job.offset_bytes),
      fmt::format("--size={}", job.part_bytes),
      fmt::format("--io_size={}", job.total_bytes),
      fmt::format("--iodepth={}", job.depth),
      "--output-format=json",
      "--output=" + out};
  EMS_ASSIGN_OR_RETURN(const pid_t pid, Spawn(arguments, log));
  StopFlag pause;
  siginfo_t ended{};
  // Left to be reaped below.
  while (::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == 0) {
    if (Interrupted()) (void)::kill(pid, SIGKILL);
    pause.WaitFor(kPollInterval);
  }
  const uint64_t before = WrittenBytes().value_or(0);
  const int code = Reap(pid);
  const uint64_t after = WrittenBytes().value_or(0);
  if (Interrupted()) return Error(StatusCode::kUnavailable, "interrupted");
  Result<FioFigures> figures = ParseFio(ReadFile(out), job.write);
  if (figures.ok()) figures->counted_bytes = after - before;
  if (code == 0 && figures.ok()) return figures;
  const std::string said = ReadFile(log) + ReadFile(out);
  return Error(StatusCode::kUnavailable, "fio --ioengine={}: exit code {}: {}", engine, code,
               said.substr(0, kLogShownMax));
}

}  // namespace ems::bench
