// What must hold: emsctl events tells what happened to real daemons, in order, as JSON that parses;
// --follow goes on over a restart of the controller.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <sstream>
#include <utility>

#include "tests/support/eventually.h"
#include "tests/support/paths.h"
#include "tests/tools/emsctl/emsctl_test.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class EventsCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = testing::Cluster::Start(
        {.servers = 3,
         .controller_flags = {"--set", "heartbeat_ms=100", "--set", "lease_ms=600"},
         .server_flags = {}});
    ASSERT_TRUE(started.ok()) << ToString(started.status());
    cluster_ = std::move(*started);
  }
  testing::ProgramOutput Run(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {"--controller", cluster_->controller_address()});
    const auto ran = testing::RunProgram("emsctl", flags);
    EXPECT_TRUE(ran.ok()) << ToString(ran.status());
    return ran.value_or(testing::ProgramOutput{.exit_code = -1, .out = {}});
  }
  Json Events(std::vector<std::string> flags = {}) const {
    flags.insert(flags.begin(), {"--json", "events"});
    const auto ran = Run(flags);
    EXPECT_EQ(ran.exit_code, 0) << ran.out;
    Json json = Json::parse(ran.out, nullptr, false);
    EXPECT_TRUE(json.is_array()) << ran.out;
    return json;
  }
  // Waits for an event that says this; null: it did not come.
  Json Await(const std::string& kind, const std::string& key = "", const std::string& value = "") {
    Json found;
    (void)testing::Eventually([&] {
      for (const Json& event : Events())
        if (event["kind"] == kind && (key.empty() || event[key] == value)) found = event;
      return !found.is_null();
    });
    return found;
  }

  std::unique_ptr<testing::Cluster> cluster_;
};

TEST_F(EventsCommandTest, TellsOfServersViewsAndNamespacesInOrder) {
  EXPECT_EQ(Events()[0]["kind"], "controller_started");
  EXPECT_EQ(Events()[1]["kind"], "namespace_created");
  ASSERT_EQ(Run({"namespace", "create", "chat"}).exit_code, 0);
  ASSERT_EQ(Run({"namespace", "set", "chat", "--dram-quota", "1GiB"}).exit_code, 0);
  ASSERT_EQ(Run({"namespace", "delete", "chat"}).exit_code, 0);
  EXPECT_FALSE(Await("namespace_deleted", "namespace", "chat").is_null());
  EXPECT_FALSE(Await("namespace_changed", "namespace", "chat").is_null());

  EXPECT_FALSE(Await("node_joined", "node", "server-0").is_null());
  cluster_->server(0).Kill();
  const Json lost = Await("node_lost", "node", "server-0");
  ASSERT_FALSE(lost.is_null()) << Events();
  EXPECT_THAT(lost["text"].get<std::string>(), HasSubstr("the lease of server server-0 has ended"));
  cluster_->server(1).Signal(SIGTERM);
  ASSERT_FALSE(Await("node_left", "node", "server-1").is_null()) << Events();
  ASSERT_FALSE(Await("view_published").is_null());

  uint64_t sequence = 0;
  std::string time;
  for (const Json& event : Events({"--limit", "0"})) {
    EXPECT_EQ(event["sequence"], ++sequence);
    EXPECT_GE(event["time"].get<std::string>(), time);
    time = event["time"].get<std::string>();
    EXPECT_FALSE(event["text"].get<std::string>().empty());
  }
}

TEST_F(EventsCommandTest, IsLimitedAndRefusesWhatIsNoTime) {
  EXPECT_EQ(Events({"--limit", "1"}).size(), 1U);
  const size_t all = Events({"--limit", "0"}).size();
  EXPECT_GE(Events({"--since", "1h", "--limit", "0"}).size(), all);
  EXPECT_EQ(Events({"--since", "2999-01-01T00:00:00Z"}).size(), 0U);
  EXPECT_TRUE(testing::Eventually([&] {
    return Events({"--since", "1s"}).empty();
  })) << "nothing happens to this cluster any more";
  EXPECT_EQ(Run({"events", "--limit", "1001"}).exit_code, 2);
  const auto odd = Run({"events", "--since", "soon"});
  EXPECT_EQ(odd.exit_code, 2);
  EXPECT_THAT(odd.out, HasSubstr("10m"));
  EXPECT_THAT(Run({"events"}).out, HasSubstr("Z  controller_started  the controller, version "));
  EXPECT_EQ(
      testing::RunProgram("emsctl", {"--controller", "127.0.0.1:1", "--timeout", "1", "events"})
          ->exit_code,
      4);
}

// emsctl events --follow, what it has written so far, and its end by Ctrl-C.
class Follower final {
 public:
  explicit Follower(const std::string& controller) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    const std::string program = testing::BinDir() + "/emsctl";
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::execl(program.c_str(), program.c_str(), "--json", "--controller", controller.c_str(),
              "events", "--follow", nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    fd_ = ends[0];
  }
  ~Follower() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
    ::close(fd_);
  }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // Lines that say that a controller started, once there are so many.
  bool AwaitStarts(int wanted) {
    return testing::Eventually([&] {
      pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
      char bytes[4096];
      if (::poll(&ready, 1, 0) == 1) {
        const ssize_t count = ::read(fd_, bytes, sizeof bytes);
        if (count > 0) text_.append(bytes, static_cast<size_t>(count));
      }
      int starts = 0;
      std::istringstream stream(text_.substr(0, text_.rfind('\n') + 1));
      for (std::string line; std::getline(stream, line);) {
        const Json event = Json::parse(line, nullptr, false);
        EXPECT_TRUE(event.is_object()) << line;
        starts += event["kind"] == "controller_started" ? 1 : 0;
      }
      return starts >= wanted;
    });
  }
  // Its exit code.
  int Interrupt() {
    int status = 0;
    ::kill(pid_, SIGINT);
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& text() const { return text_; }

 private:
  pid_t pid_ = 0;
  int fd_ = -1;
  std::string text_;
};

TEST_F(EventsCommandTest, FollowsOverARestartOfTheController) {
  Follower follower(cluster_->controller_address());
  ASSERT_TRUE(follower.AwaitStarts(1)) << follower.text();
  cluster_->controller().Kill();
  ASSERT_TRUE(cluster_->RestartController().ok());
  EXPECT_TRUE(follower.AwaitStarts(2)) << follower.text();
  EXPECT_EQ(follower.Interrupt(), 0);
}

}  // namespace
}  // namespace ems::emsctl
