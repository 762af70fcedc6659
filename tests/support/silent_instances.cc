// A prefill and a decode instance in one process, which take tasks and never answer; for tests that
// stop and kill it.
//   silent_instances --folder DIR --ready-file FILE
// Serves on unix:DIR/prefill and unix:DIR/decode, takes rings on DIR/rings. Runs until a signal.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "pdc/rpc/decode_service.h"
#include "tests/support/scripted_decode.h"
#include "tests/support/scripted_prefill.h"

namespace ems::testing {
namespace {

int Run(const std::string& folder, const std::string& ready_file) {
  pdc::InstanceInfo instance = ScriptedInstance("");
  ScriptedDecode decode;
  const auto decode_service =
      pdc::ServeDecode({.listen = "unix:" + folder + "/decode", .instance = instance}, &decode);
  instance.ring_socket_path = folder + "/rings";
  ScriptedPrefillHost prefill;
  const auto prefill_service =
      pdc::ServePrefill({.listen = "unix:" + folder + "/prefill", .instance = instance}, &prefill);
  if (!decode_service.ok() || !prefill_service.ok()) {
    std::fprintf(stderr, "silent_instances: %s; %s\n", ToString(decode_service.status()).c_str(),
                 ToString(prefill_service.status()).c_str());
    return 1;
  }
  std::ofstream(ready_file) << fmt::format("{{\"pid\": {}}}\n", ::getpid());
  while (true) ::pause();
}

}  // namespace
}  // namespace ems::testing

int main(int argc, char** argv) {
  std::string folder, ready_file;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string_view(argv[i]) == "--folder") folder = argv[i + 1];
    if (std::string_view(argv[i]) == "--ready-file") ready_file = argv[i + 1];
  }
  return ems::testing::Run(folder, ready_file);
}
