# Puts the check and its pinned npm packages into the build directory.
file(COPY ${FROM}/sdk.mjs ${FROM}/package.json ${FROM}/package-lock.json DESTINATION ${TO})
execute_process(COMMAND ${NPM} ci --no-audit --no-fund WORKING_DIRECTORY ${TO} RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "npm ci failed")
endif()
