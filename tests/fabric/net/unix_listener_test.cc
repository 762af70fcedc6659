// What must hold: peers connect and are accepted; the name of a live listener is not taken, that of
// a dead one is; every wait ends.
#include "fabric/net/unix_listener.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/thread_pool.h"
#include "fabric/emulated/ring_pair.h"

namespace ems::fabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string PathOf(const std::string& name) {
  return ::testing::TempDir() + "/" + name + std::to_string(::getpid());
}

Result<Fd> ConnectTo(const std::string& path) {
  return Connect({.host = {}, .port = 0, .unix_path = path}, seconds(10));
}

TEST(UnixListenerTest, ARingIsOfferedOverAnAcceptedConnection) {
  auto listener = UnixListener::Open(PathOf("ring"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  Result<std::unique_ptr<RingReceiver>> receiver = Error(StatusCode::kInternal, "not yet");
  Thread thread("accept", [&] {
    auto peer = listener->Accept(seconds(20));
    if (peer.ok()) receiver = RingReceiver::Offer(*std::move(peer), {.entries = 2});
  });
  auto socket = ConnectTo(listener->path());
  ASSERT_TRUE(socket.ok()) << socket.status();
  const auto sender = RingSender::Accept(*std::move(socket), seconds(20));
  thread.Join();
  ASSERT_TRUE(sender.ok() && receiver.ok()) << sender.status() << receiver.status();
  EXPECT_TRUE((*sender)->Probe(seconds(20)).ok());
}

TEST(UnixListenerTest, ANameThatIsInUseIsNotTaken) {
  const std::string path = PathOf("taken");
  {
    const auto first = UnixListener::Open(path);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(UnixListener::Open(path).status().code(), StatusCode::kAlreadyExists);
    EXPECT_TRUE(ConnectTo(path).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path)) << "its name goes with it";
  std::ofstream(path) << "a file";
  EXPECT_EQ(UnixListener::Open(path).status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(std::filesystem::exists(path));
  std::filesystem::remove(path);
}

TEST(UnixListenerTest, TheNameOfADeadListenerIsTakenOver) {
  const std::string path = PathOf("dead"), kept = path + ".kept";
  {
    const auto first = UnixListener::Open(path);
    ASSERT_TRUE(first.ok());
    std::filesystem::rename(path, kept);  // as a listener that was killed leaves it
  }
  std::filesystem::rename(kept, path);
  const auto second = UnixListener::Open(path);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(ConnectTo(path).ok());
}

TEST(UnixListenerTest, WaitsNoLongerThanToldAndRefusesLongPaths) {
  auto listener = UnixListener::Open(PathOf("quiet"));
  ASSERT_TRUE(listener.ok());
  EXPECT_EQ(listener->Accept(milliseconds(2)).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(UnixListener::Open(std::string(200, 'x')).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(UnixListener::Open("").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::fabric
