#include "bench/model_instance.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "bench/child_process.h"
#include "common/bytes.h"
#include "common/hash.h"
#include "common/thread_pool.h"
#include "ems_model/host_target.h"
#include "ems_model/model_cache.h"
#include "ems_model/source/weight_source.h"

namespace ems::bench {
namespace {

constexpr int kChildSocket = 3;
constexpr Duration kLoadPatience = std::chrono::minutes(20);
constexpr uint64_t kReadBytes = 4 * kMiB;
constexpr size_t kReaders = 4;
constexpr uint32_t kLoadThreads = 4;  // of a load of EMS, and of the copy beside it

std::string Escaped(std::string_view text) {
  std::string line(text);
  std::ranges::replace(line, '\n', ' ');
  return line;
}

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    text.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

// A line without its end; nothing: the other side is gone.
std::optional<std::string> ReadLine(int fd, std::string* pending) {
  while (true) {
    const size_t end = pending->find('\n');
    if (end != std::string::npos) {
      std::string line = pending->substr(0, end);
      pending->erase(0, end + 1);
      return line;
    }
    char part[512];
    const ssize_t got = ::recv(fd, part, sizeof(part), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    pending->append(part, static_cast<size_t>(got));
  }
}

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double Seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

// Memory that is there: touched, on huge pages where there are any.
class Memory final {
 public:
  explicit Memory(uint64_t bytes) : bytes_(bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return;
    at_ = static_cast<std::byte*>(at);
    ::madvise(at_, bytes, MADV_HUGEPAGE);
    std::memset(at_, 1, bytes);
  }
  ~Memory() {
    if (at_ != nullptr) ::munmap(at_, bytes_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  bool valid() const { return at_ != nullptr; }
  MutableBytes bytes() const { return {at_, bytes_}; }

 private:
  const uint64_t bytes_;
  std::byte* at_ = nullptr;
};

class Loader {
 public:
  virtual ~Loader() = default;
  // All files of the model, one after the other by path, into `device`; true: nothing came from
  // the source.
  virtual Result<bool> Load(const std::string& version, const std::string& url,
                            MutableBytes device) = 0;
};

// Reads the whole source, several ranges at a time.
Status ReadSource(const std::string& url, MutableBytes into) {
  EMS_ASSIGN_OR_RETURN(const auto source, model::OpenSource({.url = url}));
  const Deadline deadline = Deadline::After(kLoadPatience);
  EMS_ASSIGN_OR_RETURN(const std::vector<model::SourceFile> files, source->List(deadline));
  struct Piece {
    const model::SourceFile* file;
    uint64_t offset;
    MutableBytes into;
  };
  std::vector<Piece> pieces;
  uint64_t at = 0;
  for (const model::SourceFile& file : files) {
    for (uint64_t offset = 0; offset < file.bytes; offset += kReadBytes) {
      const uint64_t part = std::min(kReadBytes, file.bytes - offset);
      if (part > into.size() - at) return Error(StatusCode::kOutOfRange, "larger than announced");
      pieces.push_back({&file, offset, into.subspan(at, part)});
      at += part;
    }
  }
  std::atomic<size_t> next{0};
  std::vector<Status> ends(kReaders);
  std::vector<Thread> readers;
  readers.reserve(kReaders);
  for (Status& end : ends) {
    readers.emplace_back("read", [&pieces, &next, &end, &source, deadline] {
      for (size_t i = next++; i < pieces.size() && end.ok(); i = next++)
        end = source->Read(*pieces[i].file, pieces[i].offset, pieces[i].into, deadline);
    });
  }
  readers.clear();
  for (const Status& end : ends) EMS_RETURN_IF_ERROR(end);
  return OkStatus();
}

class NoCache final : public Loader {
 public:
  Result<bool> Load(const std::string&, const std::string& url, MutableBytes device) override {
    EMS_RETURN_IF_ERROR(ReadSource(url, device));
    return false;
  }
};

class LocalDram final : public Loader {
 public:
  Result<bool> Load(const std::string& version, const std::string& url,
                    MutableBytes device) override {
    const bool hit = kept_ == version;
    if (!hit) {
      kept_.clear();
      if (memory_ == nullptr || memory_->bytes().size() != device.size())
        memory_ = std::make_unique<Memory>(device.size());
      if (!memory_->valid()) return Error(StatusCode::kResourceExhausted, "no memory");
      EMS_RETURN_IF_ERROR(ReadSource(url, memory_->bytes()));
      kept_ = version;
    }
    std::memcpy(device.data(), memory_->bytes().data(), device.size());
    return hit;
  }

 private:
  std::unique_ptr<Memory> memory_;  // as much as one model: what an instance's share of DRAM holds
  std::string kept_;
};

class Ems final : public Loader {
 public:
  Ems(const std::string& controller, const std::string& name_space)
      : cache_({.controller = controller, .name_space = name_space}) {}
  Result<bool> Load(const std::string& version, const std::string&, MutableBytes device) override {
    uint64_t at = 0;  // files come by path
    model::HostTarget target(
        {.choose = {}, .room = [&](std::string_view, uint64_t bytes) -> Result<MutableBytes> {
           if (bytes > device.size() - at)
             return Error(StatusCode::kOutOfRange, "larger than announced");
           at += bytes;
           return device.subspan(at - bytes, bytes);
         }});
    EMS_ASSIGN_OR_RETURN(const model::LoadStats stats,
                         cache_.Load({.model = "bench/model", .version = version}, &target,
                                     {.threads = kLoadThreads, .fallback_to_source = false},
                                     Deadline::After(kLoadPatience)));
    return stats.misses == 0 && stats.jobs == 0 && stats.source_bytes == 0;
  }

 private:
  model::ModelCache cache_;
};

std::unique_ptr<Loader> MakeLoader(const std::string& strategy, const std::string& controller,
                                   const std::string& name_space) {
  if (strategy == StrategyName(ModelStrategy::kNoCache)) return std::make_unique<NoCache>();
  if (strategy == StrategyName(ModelStrategy::kLocalDram)) return std::make_unique<LocalDram>();
  if (strategy == StrategyName(ModelStrategy::kEms))
    return std::make_unique<Ems>(controller, name_space);
  return nullptr;
}

std::string DoLoad(Loader* loader, std::istringstream* words, std::unique_ptr<Memory>* device) {
  std::string version, url;
  uint64_t bytes = 0;
  *words >> version >> url >> bytes;
  if (*device == nullptr || (*device)->bytes().size() != bytes) {
    device->reset();
    *device = std::make_unique<Memory>(bytes);
  }
  if (!(*device)->valid()) return "error no memory\n";
  const double cpu = CpuSeconds();
  const TimePoint begin = Clock::System().Now();
  const Result<bool> hit = loader->Load(version, url, (*device)->bytes());
  const double seconds = Seconds(Clock::System().Now() - begin);
  if (!hit.ok()) return fmt::format("error {}\n", Escaped(ToString(hit.status())));
  return fmt::format("ok {} {} {} {} {}\n", seconds, CpuSeconds() - cpu, bytes,
                     Hash64((*device)->bytes()), *hit ? 1 : 0);
}

// As many threads as a load has, each a share of the bytes.
void CopyInThreads(MutableBytes to, ConstBytes from) {
  std::vector<Thread> threads;
  threads.reserve(kLoadThreads);
  for (size_t i = 0; i < kLoadThreads; ++i) {
    const size_t begin = from.size() * i / kLoadThreads, end = from.size() * (i + 1) / kLoadThreads;
    threads.emplace_back("copy", [to, from, begin, end] {
      std::memcpy(to.data() + begin, from.data() + begin, end - begin);
    });
  }
}

std::string DoCopy(uint64_t bytes) {
  const Memory from(bytes), to(bytes);
  if (!from.valid() || !to.valid()) return "error no memory\n";
  std::vector<double> rounds(5);
  for (double& round : rounds) {
    const TimePoint begin = Clock::System().Now();
    CopyInThreads(to.bytes(), from.bytes());
    round = Seconds(Clock::System().Now() - begin);
  }
  std::ranges::sort(rounds);
  return fmt::format("ok {}\n", rounds[2]);
}

}  // namespace

std::string_view StrategyName(ModelStrategy strategy) {
  switch (strategy) {
    case ModelStrategy::kNoCache:
      return "no-cache";
    case ModelStrategy::kLocalDram:
      return "local-dram";
    case ModelStrategy::kEms:
      break;
  }
  return "ems";
}

Result<std::unique_ptr<ModelInstance>> ModelInstance::Start(ModelStrategy strategy,
                                                            const std::string& controller,
                                                            const std::string& name_space) {
  int pair[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    return Error(StatusCode::kInternal, "socketpair: {}", fabric::ErrnoText(errno));
  fabric::Fd ours(pair[0]);
  const fabric::Fd theirs(pair[1]);
  const std::vector<std::string> arguments = {
      "ems-bench",    "model-instance", "--strategy",  std::string(StrategyName(strategy)),
      "--controller", controller,       "--namespace", name_space};
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& text : arguments) argv.push_back(const_cast<char*>(text.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return Error(StatusCode::kInternal, "fork: {}", fabric::ErrnoText(errno));
  if (pid == 0) {  // only calls that are safe here
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent || ::dup2(theirs.get(), kChildSocket) < 0) ::_exit(127);
    ::close_range(kChildSocket + 1, ~0U, 0);
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  return std::make_unique<ModelInstance>(Passkey(), pid, std::move(ours));
}

ModelInstance::~ModelInstance() {
  ::shutdown(socket_.get(), SHUT_RDWR);
  Reap(pid_);
}

Result<std::string> ModelInstance::Answer() {
  const auto line = ReadLine(socket_.get(), &pending_);
  if (!line) return Error(StatusCode::kInternal, "an instance is gone");
  if (line->starts_with("ok ")) return line->substr(3);
  return Error(StatusCode::kInternal, "an instance could not load: {}",
               line->starts_with("error ") ? line->substr(6) : *line);
}

Result<std::string> ModelInstance::Ask(const std::string& line) {
  if (!WriteAll(socket_.get(), line)) return Error(StatusCode::kInternal, "an instance is gone");
  return Answer();
}

Status ModelInstance::Begin(const std::string& version, const std::string& url, uint64_t bytes) {
  if (WriteAll(socket_.get(), fmt::format("load {} {} {}\n", version, url, bytes)))
    return OkStatus();
  return Error(StatusCode::kInternal, "an instance is gone");
}

Result<InstanceLoad> ModelInstance::End() {
  EMS_ASSIGN_OR_RETURN(const std::string text, Answer());
  std::istringstream words(text);
  InstanceLoad load;
  int hit = 0;
  words >> load.seconds >> load.cpu_seconds >> load.bytes >> load.hash >> hit;
  load.hit = hit != 0;
  return load;
}

Result<double> ModelInstance::Copy(uint64_t bytes) {
  EMS_ASSIGN_OR_RETURN(const std::string text, Ask(fmt::format("copy {}\n", bytes)));
  double seconds = 0;
  std::istringstream(text) >> seconds;
  return seconds;
}

int RunModelInstance(const std::string& strategy, const std::string& controller,
                     const std::string& name_space) {
  const auto loader = MakeLoader(strategy, controller, name_space);
  if (loader == nullptr) return 2;
  std::unique_ptr<Memory> device;
  std::string pending;
  while (const auto line = ReadLine(kChildSocket, &pending)) {
    std::istringstream words(*line);
    std::string command;
    words >> command;
    uint64_t bytes = 0;
    std::string answer = "error no such command\n";
    if (command == "load") answer = DoLoad(loader.get(), &words, &device);
    if (command == "copy" && words >> bytes) answer = DoCopy(bytes);
    if (!WriteAll(kChildSocket, answer)) break;
  }
  return 0;
}

}  // namespace ems::bench
