// What must hold: a script gets one document, a terminal gets tables that fit, and is as it was
// when Ctrl-C ends it.
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string_view>
#include <utility>

#include "tests/support/paths.h"
#include "tests/tools/emsctl/emsctl_test.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;
using TopCommandTest = EmsctlTest;

TEST_F(TopCommandTest, OnceIsOneDocumentOfServersAndNamespaces) {
  const auto client = cluster_->Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_EQ((*client)->Put("key", std::string_view("value")), OkStatus());
  const auto json = RunJson({"top", "--once", "--interval", "0.1"});
  ASSERT_EQ(json["servers"].size(), 1U);
  EXPECT_EQ(json["servers"][0]["name"], testing::Cluster::ServerName(0));
  EXPECT_EQ(json["servers"][0]["objects"], 1);
  EXPECT_TRUE(json["servers"][0]["ops_per_s"].is_number());
  EXPECT_EQ(json["namespaces"][0]["name"], "default");
  // No terminal: it ends by itself.
  EXPECT_THAT(Run({"top", "--interval", "0.1"}).out, HasSubstr("ops/s"));
}

TEST_F(TopCommandTest, AServerThatDoesNotAnswerIsSaid) {
  cluster_->server(0).Signal(SIGSTOP);
  const auto ran = Run({"--timeout", "0.5", "top", "--once", "--interval", "0.1"});
  cluster_->server(0).Signal(SIGCONT);
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_THAT(ran.out, HasSubstr("! server server-0: "));
}

TEST_F(TopCommandTest, WithoutAControllerItSaysSo) {
  EXPECT_EQ(RunBare({"--controller", "127.0.0.1:1", "--timeout", "1", "top"}).exit_code, 4);
}

// emsctl top on a terminal of its own, `columns` wide.
class Terminal final {
 public:
  Terminal(const std::string& controller, unsigned short columns) {
    winsize size{.ws_row = 12, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    const std::string program = testing::BinDir() + "/emsctl";
    pid_ = ::forkpty(&fd_, nullptr, nullptr, &size);
    if (pid_ != 0) return;
    ::execl(program.c_str(), program.c_str(), "--controller", controller.c_str(), "top",
            "--interval", "0.1", nullptr);
    ::_exit(127);
  }
  ~Terminal() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(fd_);
  }
  // Reads on until `text` has come, or the program has ended.
  std::string ReadUntil(std::string_view text) {
    std::string read;
    const Deadline deadline = Deadline::After(std::chrono::seconds(20));
    char bytes[4096];
    while (read.find(text) == std::string::npos) {
      pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, deadline.RemainingMs()) != 1) break;
      const ssize_t got = ::read(fd_, bytes, sizeof(bytes));
      if (got <= 0) break;
      read.append(bytes, static_cast<size_t>(got));
    }
    return read;
  }
  bool Type(char key) const { return ::write(fd_, &key, 1) == 1; }
  int ExitCode() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  int fd_ = -1;
  pid_t pid_ = -1;
};

TEST_F(TopCommandTest, OnANarrowTerminalLinesAreCutAndCtrlCRestoresIt) {
  constexpr size_t kColumns = 20;
  constexpr std::string_view kShow = "\x1b[?25h\x1b[?1049l";
  Terminal terminal(cluster_->controller_address(), kColumns);
  const std::string drawn = terminal.ReadUntil("namespace  ");
  EXPECT_THAT(drawn, HasSubstr("\x1b[?1049h"));
  EXPECT_THAT(drawn, HasSubstr("server-0"));
  const size_t table = drawn.find("server  ");
  ASSERT_NE(table, std::string::npos) << drawn;
  EXPECT_EQ(drawn.find("\r\n", table) - table, kColumns) << drawn;
  ASSERT_TRUE(terminal.Type('\x03'));
  EXPECT_THAT(terminal.ReadUntil(kShow), HasSubstr(std::string(kShow)));
  EXPECT_EQ(terminal.ExitCode(), 0);
}

}  // namespace
}  // namespace ems::emsctl
