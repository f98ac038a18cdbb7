# args: KEY TERMINAL COUNT NAME=VALUE... COMMAND... Runs the command as the sandbox's user, in a process group of its own, with exactly so many
# variables. Says on standard error, between NULs, "KEY s PID PTS" when it is there and "KEY x STATUS" (as of wait) when it has ended. What the
# command leaves behind becomes its own children (prctl 36), for whom it stays. It is root itself where it may be, so that the command
# cannot end it. A command that was killed before it is there (kill.pl) does not begin. TERMINAL: -, or "ROWS COLUMNS INPUT" of one that it has
# (terminal.pl), whose number is PTS; INPUT: 1 when there is something to come on standard input.
my ($k, $tty, $n) = splice @ARGV, 0, 3;
my @env = splice @ARGV, 0, $n;
my $elf = ''; # of perl itself: Config, which knows the machine too, takes as long to load as all the rest here
if (open my $exe, '<', '/proc/self/exe') { read $exe, $elf, 20 }
my ($prctl, $setsid) = unpack('x18 v', $elf . "\0" x 20) == 62 ? (157, 112) : (167, 157); # x86-64, or one with the common numbers
syscall $prctl, 36, 1, 0, 0, 0;
my ($uid, $gid) = (getpwnam 'user')[2, 3];
my @tty = $tty eq '-' ? () : split / /, $tty;
if (@tty && !terminal_open(@tty[0, 1], $uid)) { syswrite STDERR, "\0$k s 0 0\0"; print "cannot open a terminal: $!\n"; close STDOUT; syswrite STDERR, "\0$k x 32256\0"; exit 126 }
pipe my $became, my $becomes; # closes as the command takes the child's place
my $p = fork;
if (!defined $p) { syswrite STDERR, "cannot start a process: $!\n\0$k x 32256\0"; exit 126 }
my $killed = "/run/sandgate/$k";
if (!$p) {
    no warnings;
    kill 'KILL', $$ if -e $killed;
    if ($> == 0 && $uid) {
        my @groups = ($gid);
        while (my @g = getgrent) { push @groups, $g[2] if grep { $_ eq 'user' } split ' ', $g[3] }
        ($(, $)) = ($gid, join ' ', $gid, @groups);
        ($<, $>) = ($uid, $uid);
        if ($> == 0 || $< == 0) { syswrite STDERR, "cannot become the sandbox's user\n"; exit 126 }
    }
    if (@tty) { terminal_enter($setsid) } else { setpgrp 0, 0 }
    %ENV = map { split /=/, $_, 2 } @env;
    exec { $ARGV[0] } @ARGV;
    my $e = $! + 0;
    syswrite STDERR, "$ARGV[0]: $!\n";
    exit($e == 2 ? 127 : 126);
}
close $becomes;
sysread $became, my $nothing, 1;
close $became;
syswrite STDERR, "\0$k s $p " . (@tty ? $pts : 0) . "\0";
my $ended = sub { syswrite STDERR, "\0$k x $_[0]\0"; close STDERR };
if (@tty) { terminal_serve($p, $tty[2], $ended) }
close STDIN; close STDOUT;
while ((my $w = waitpid(-1, 0)) > 0) { $ended->($?) if $w == $p }
unlink $killed;
