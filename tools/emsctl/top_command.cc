// emsctl top: what servers and namespaces do now, again and again.
//
// Invariant: the terminal is as it was when the command ends, also by Ctrl-C.
// Bound: a server is asked once an interval, and kAskMost is how long a refresh may wait for it.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cluster/controller_client.h"
#include "common/command_line.h"
#include "common/daemon.h"
#include "mp_sdk/client.h"
#include "tools/emsctl/ask_servers.h"
#include "tools/emsctl/context.h"
#include "tools/emsctl/output.h"
#include "tools/emsctl/top_text.h"

namespace ems::emsctl {
namespace {

constexpr Duration kAskMost = std::chrono::seconds(2);

struct Flags {
  double interval_seconds = 2;
  bool once = false;
  Duration interval() const {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(interval_seconds));
  }
};

// The other screen of the terminal, without a cursor, for as long as this lives.
class Screen final {
 public:
  Screen() { (void)Print("\x1b[?1049h\x1b[?25l"); }
  ~Screen() { (void)Print("\x1b[?25h\x1b[?1049l"); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  // Replaces what was there. False: the terminal is gone.
  static bool Draw(const std::string& text) {
    winsize size{};
    (void)::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    // The last line stays empty, or the screen would scroll.
    const size_t rows = size.ws_row > 2 ? size.ws_row - 1U : 0;
    return Print("\x1b[H\x1b[J" + Fitted(text, size.ws_col, rows));
  }
};

// Asks servers for as long as it lives; the client follows the view. Threading: one thread.
class Asker final {
 public:
  explicit Asker(const Context& context) : context_(context) {}
  // Errors: the controller does not answer, or there is no namespace to ask with
  Status Connect() {
    const Deadline deadline = context_.deadline();
    ControllerClient controller(context_.controller, "emsctl", context_.joined.get());
    ViewCache cache;
    EMS_RETURN_IF_ERROR(controller.Refresh(&cache, deadline));
    client_ = ConnectToAny(context_, *cache.namespaces(), deadline);
    return client_.status();
  }
  Sample Ask() const {
    const ViewCache::View view = (*client_)->views().view();
    const Deadline deadline = Deadline::After(std::min(context_.timeout(), kAskMost));
    return SampleOf(AskServers(context_, client_, *view, deadline), Clock::System().Now());
  }

 private:
  const Context& context_;
  Result<std::unique_ptr<Client>> client_ = Error(StatusCode::kUnavailable, "not connected");
};

int RunTop(const Context& context, const Flags& flags) {
  const StopSignals signals;
  Asker asker(context);
  if (const Status s = asker.Connect(); !s.ok()) return Unreachable(context, s);
  Sample before = asker.Ask();
  if (flags.once || context.json || ::isatty(STDOUT_FILENO) == 0) {
    if (signals.Wait(flags.interval()) != 0) return kExitOk;
    const Sample now = asker.Ask();
    return Show(context, TopJson(before, now), TopText(before, now));
  }
  const Screen screen;
  bool drawn = Screen::Draw("asking …\n");
  while (drawn && signals.Wait(flags.interval()) == 0) {
    Sample now = asker.Ask();
    drawn = Screen::Draw(TopText(before, now));
    before = std::move(now);
  }
  return drawn ? kExitOk : kExitFailed;
}

}  // namespace

void AddTopCommand(Command* program, const Context* context) {
  const auto flags = std::make_shared<Flags>();
  Command* top = program->AddCommand("top", "What servers and namespaces do now, refreshed");
  top->AddOption("--interval", &flags->interval_seconds, "Seconds from one look to the next",
                 {.check = InRange{0.1, 3600.0}});
  top->AddFlag("--once", &flags->once,
               "One look after one interval, and exit; so it is with --json, and where standard "
               "output is no terminal");
  top->SetFooter(
      "Rates are those of the last interval; `-`: not known, as of a server that was started in "
      "between. What clients read one-sided, from a server of their own machine, counts as well. "
      "Ctrl-C ends it.");
  top->SetRun([=] { return RunTop(*context, *flags); });
}

}  // namespace ems::emsctl
